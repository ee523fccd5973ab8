//! What durable claims learn from their answers.

use std::time::Instant;

use super::super::super::claim::{Claimable, Claimed};
use super::super::pauses::Why;
use super::super::rules::Rules;
use super::super::scan::{EVERYTHING, NOTHING};
use super::{Backoff, DurableClaims};
use crate::Job;

impl DurableClaims {
    /// Learns from what a claim brought. `lanes` is how many claims may be under way at a time. Returns whether all due
    /// jobs are claimed now, as far as the claim has seen.
    pub(in super::super) fn on_claimed(
        &mut self,
        now: Instant,
        wanted: &Claimable,
        claimed: &Claimed,
        rules: &Rules,
        lanes: usize,
    ) -> bool {
        self.errors = Backoff::default();
        let is_current = self.known.is_current(wanted.epoch);
        let count = claimed.count();
        // Behind jobs that the database refused, there may be others.
        let is_full = count == wanted.count || !claimed.refused.is_empty();
        let has_room = claimed.without_room.is_empty();
        if wanted.before == EVERYTHING && !wanted.is_of_seen() {
            self.was_full = is_full && has_room;
        }
        let level = claimed.level.clone().filter(|_| has_room);
        self.level.on_claimed(now, wanted, level, claimed.took, is_current);
        let last = claimed.jobs.last().map_or(NOTHING, Job::order);
        let mut is_all = false;
        let known_to = if is_full {
            match wanted.before == EVERYTHING {
                true => self.ask(),
                false => self.hint(),
            }
            // Of two claims at a time, the later one may answer first. The jobs of the other are in the list soon
            // enough.
            if lanes > 1 { self.known.to().max(last) } else { last }
        } else if wanted.before < EVERYTHING {
            self.known.to().max(wanted.before)
        } else if wanted.is_of_seen() {
            // Others have claimed some of them.
            self.ask();
            self.known.to().max(last)
        } else if wanted.level.is_some() {
            // There may be jobs before the position, or jobs of other levels.
            self.hint();
            self.known.to().max(last)
        } else {
            is_all = true;
            self.begin_refetch_delay(now, rules, count);
            EVERYTHING
        };
        match is_current {
            true => self.known.learn(known_to),
            false => self.hint(),
        }
        self.learn_flagged(now, wanted, claimed, is_full);
        self.learn_bytes(&claimed.jobs, !has_room);
        is_all
    }

    /// The delay that the options ask for after a claim that brought few jobs.
    fn begin_refetch_delay(&mut self, now: Instant, rules: &Rules, count: usize) {
        self.pauses.end(Why::Refetch);
        let Some(queue) = &rules.local_queue else { return };
        let Some(delay) = queue.refetch_delay.as_ref().filter(|delay| count <= delay.threshold) else {
            return;
        };
        let most = delay.max_abort_threshold.unwrap_or(5 * queue.size);
        self.hints_to_cut = fastrand::usize(0..=most).max(1);
        self.pauses.begin(Why::Refetch, now + delay.duration.mul_f64(0.5 + fastrand::f64()));
    }

    fn learn_flagged(&mut self, now: Instant, wanted: &Claimable, claimed: &Claimed, is_full: bool) {
        if wanted.level.is_some() {
            // It reads no jobs with flags, and takes nothing if there are any.
        } else if wanted.reads_all_flagged {
            self.flagged.on_read(now, claimed.took, claimed.has_forbidden);
        } else if !is_full && !wanted.unqueued.is_empty() {
            self.flagged.owe();
        }
    }

    /// The next claims are as large as their payloads allow.
    fn learn_bytes(&mut self, jobs: &[Job], was_too_much: bool) {
        if jobs.is_empty() {
            return;
        }
        let average =
            jobs.iter().map(|job| job.payload_json().len()).sum::<usize>() as f64 / jobs.len() as f64;
        self.payload_bytes = match was_too_much {
            true => average,
            false => self.payload_bytes + (average - self.payload_bytes) / 4.0,
        };
    }
}
