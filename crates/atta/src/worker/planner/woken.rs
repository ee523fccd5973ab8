//! Wake-ups: jobs were announced, or there may be jobs of any kind. Decides what is no longer known and has to be asked
//! for.

use std::time::Instant;

use super::Planner;
use super::scan::NOTHING;

impl Planner {
    pub(super) fn on_announced(&mut self, now: Instant, count: usize) {
        if count > 0 && self.may_pick() {
            let is_idle = self.forget_if_idle();
            self.held.scan.hint_announced(is_idle);
            self.announced.add(now, count);
        } else if count > 0 {
            self.wake_up(now);
        }
    }

    /// There may be jobs of both kinds, and anywhere.
    pub(super) fn wake_up(&mut self, now: Instant) {
        self.durable.hint();
        let is_idle = self.forget_if_idle();
        match is_idle {
            true => self.held.scan.forget(),
            false => self.held.scan.hint(),
        }
        if !self.has_free_slot() && self.rules.local_queue.is_none() {
            self.durable.forget(NOTHING);
        }
        if self.may_pick() && self.held.away() == 0 {
            self.announced.pick_first(now);
        }
    }

    /// Whether a pick can be sent that may find jobs. While all tasks are slow, only durable claims find them.
    fn may_pick(&self) -> bool {
        self.may_hold() && self.held.scan.has_tasks()
    }

    /// While nothing waits to start, it costs nothing to wait for the answers of both kinds of claims: jobs that come
    /// in together then start in their order. Not while a claim is under way: its result would be discarded, and its
    /// jobs would wait for the next claim. With hints that arrive faster than answers, no job would ever start.
    fn forget_if_idle(&mut self) -> bool {
        let is_idle =
            self.list.first().is_none() && !self.held.scan.is_scanning() && self.durable.away() == 0;
        if is_idle {
            self.durable.forget_for_announced();
        }
        is_idle
    }
}
