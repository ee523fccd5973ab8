//! Durable claims that are under way.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::super::super::claim::Claimable;

#[derive(Debug, Default)]
pub(super) struct UnderWay {
    /// When each of them was sent.
    sent_at: Vec<Instant>,
    /// When the claim was sent that was not answered yet and may take any job. No other such claim is sent meanwhile.
    unanswered: Option<Instant>,
    /// How many jobs they ask for.
    reserved: usize,
    /// Jobs of lost batches that were claimed again meanwhile, and when. One of these claims may have had the job, and
    /// its reply may arrive after the job is completed.
    taken_over: HashMap<i64, Instant>,
}

impl UnderWay {
    pub(super) fn count(&self) -> usize {
        self.sent_at.len()
    }

    pub(super) fn reserved(&self) -> usize {
        self.reserved
    }

    /// When the oldest of them was sent.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.sent_at.iter().min().copied()
    }

    /// Whether one of them keeps others from being sent.
    pub(super) fn waits_for_answer(&self, now: Instant, patience: Duration) -> bool {
        self.unanswered.is_some_and(|sent_at| now < sent_at + patience)
    }

    pub(super) fn on_sent(&mut self, wanted: &Claimable) {
        self.reserved += wanted.count;
        self.sent_at.push(wanted.sent_at);
        if !wanted.is_of_seen() {
            self.unanswered = Some(wanted.sent_at);
        }
    }

    /// A claim was answered, and its jobs are still being decoded.
    pub(super) fn on_answered(&mut self, sent_at: Instant) {
        self.unanswered.take_if(|time| *time == sent_at);
    }

    /// A claim has ended.
    pub(super) fn on_back(&mut self, wanted: &Claimable) {
        self.reserved -= wanted.count;
        let index = self.sent_at.iter().position(|sent_at| *sent_at == wanted.sent_at);
        index.map(|index| self.sent_at.swap_remove(index));
        if self.sent_at.is_empty() {
            self.taken_over.clear();
        }
        if !wanted.is_of_seen() {
            self.on_answered(wanted.sent_at);
        }
    }

    /// These jobs of a lost batch were claimed again.
    pub(super) fn note_taken_over(&mut self, now: Instant, ids: impl Iterator<Item = i64>) {
        if !self.sent_at.is_empty() {
            self.taken_over.extend(ids.map(|id| (id, now)));
        }
    }

    /// Whether the job was claimed again for a lost batch after this claim was sent.
    pub(super) fn is_taken_over(&self, wanted: &Claimable, id: i64) -> bool {
        self.taken_over.get(&id).is_some_and(|at| wanted.sent_at <= *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_are_claimed_again_are_known_until_all_claims_have_ended() {
        let now = Instant::now();
        let (first, second) = (Claimable::for_tests(now), Claimable::for_tests(now + Duration::from_secs(1)));
        let mut under_way = UnderWay::default();
        under_way.note_taken_over(now, [1].into_iter());
        under_way.on_sent(&first);
        assert!(!under_way.is_taken_over(&first, 1), "no claim was under way");
        under_way.note_taken_over(now, [2].into_iter());
        under_way.on_sent(&second);
        assert!(under_way.is_taken_over(&first, 2) && !under_way.is_taken_over(&second, 2));
        assert_eq!((under_way.count(), under_way.reserved(), under_way.oldest()), (2, 20, Some(now)));
        under_way.on_back(&second);
        assert!(under_way.is_taken_over(&first, 2));
        under_way.on_back(&first);
        assert!(!under_way.is_taken_over(&first, 2) && under_way.count() == 0);
    }
}
