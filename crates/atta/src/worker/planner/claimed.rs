//! The answers of claims: what durable claims ([`durable`]) and picks ([`held`]) brought, and what both have in common.

mod durable;
mod held;

use std::time::Instant;

use super::rules::Mode;
use super::{Command, Planner};
use crate::event::WorkerEvent;
use crate::{Error, Result};

/// A run until no job is left ends with an error after this number of failed claims in a row.
const ONCE_TRIES: u32 = 8;

impl Planner {
    fn on_claim_error(&mut self, error: Error, is_first: bool, tries: u32) {
        self.commands.push(Command::Report(WorkerEvent::ClaimFailed { error: error.to_string().into() }));
        if is_first {
            tracing::warn!(%error, "could not claim jobs; retrying");
        }
        if self.rules.mode == Mode::UntilEmpty && tries >= ONCE_TRIES {
            self.error = Some(error);
        }
    }

    pub(super) fn on_searched(&mut self, now: Instant, found: Result<(usize, usize)>) {
        self.lanes -= 1;
        match found {
            Ok((found, blocked)) => {
                self.lost.on_searched(now, found, blocked, self.shutdown.has_begun());
                if found > 0 {
                    self.wake_up(now);
                }
            }
            Err(error) => {
                let is_first = self.lost.tries() == 0;
                self.lost.on_error(now);
                self.on_claim_error(error, is_first, self.lost.tries());
            }
        }
    }
}
