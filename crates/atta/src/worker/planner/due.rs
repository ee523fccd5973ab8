//! When the next jobs are due, and which jobs were announced and not found yet.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::super::backoff::Backoff;

/// The times at which jobs become due, by the last poll.
#[derive(Debug, Default)]
pub(super) struct DueTimes {
    /// In order.
    next: VecDeque<Instant>,
    /// It is unknown when the next job is due, so a poll is needed.
    is_unknown: bool,
    /// Claims that found nothing although a job was due, because other workers have locked it.
    in_vain: Backoff,
    /// When the next such claim is sent.
    retry_at: Option<Instant>,
}

impl DueTimes {
    /// Other jobs may be the next ones to become due, so a poll is needed.
    pub(super) fn forget(&mut self) {
        self.is_unknown = true;
    }

    /// A claim found jobs.
    pub(super) fn on_found(&mut self) {
        self.in_vain = Backoff::default();
    }

    /// Whether a poll is needed. It is asked for once.
    pub(super) fn take_unknown(&mut self) -> bool {
        std::mem::take(&mut self.is_unknown)
    }

    /// A poll returned the times of the next jobs.
    pub(super) fn on_polled(&mut self, now: Instant, times: Vec<Instant>, poll_interval: Duration) {
        let is_due = times.first().is_some_and(|time| *time <= now);
        self.next = times.into_iter().filter(|time| *time > now).collect();
        if !is_due {
            self.retry_at = None;
        } else if self.retry_at.is_none() {
            // A job is due and was not claimed: it is asked for at once the first time, then less and less often. A
            // poll does not put off what an earlier one has decided, or frequent polls would put it off forever.
            let pause = if self.in_vain.tries() == 0 { Duration::ZERO } else { self.in_vain.next() };
            self.in_vain.next();
            self.retry_at = Some(now + pause.min(poll_interval));
        }
    }

    /// Whether jobs have become due.
    pub(super) fn on_timer(&mut self, now: Instant) -> bool {
        let due = self.next.partition_point(|time| *time <= now);
        self.next.drain(..due);
        let is_retry = self.retry_at.take_if(|time| *time <= now).is_some();
        let is_due = due > 0 || is_retry;
        // There may be more than the poll returned.
        self.is_unknown |= is_due && self.next.is_empty();
        is_due
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.next.front().copied().into_iter().chain(self.retry_at).min()
    }
}

/// How long a durable claim waits for a pick that was sent at the same time.
const PICK_FIRST: Duration = Duration::from_millis(3);

/// How a pick compares with the jobs that were announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It brought exactly the jobs that were announced.
    All,
    /// It brought other jobs, or fewer.
    NotAll {
        /// Whether some announced jobs are still to be found.
        is_missing: bool,
    },
    /// It brought as many jobs as it asked for. More may lie behind them.
    Full,
}

/// The number of announced jobs that no pick has brought yet. If a pick brings as many new jobs, nothing else has to be
/// asked for: no durable claim, and no poll.
#[derive(Debug, Default)]
pub(super) struct Announced {
    state: State,
    /// The highest id of all jobs that were picked: jobs with higher ids are new.
    highest_id: i64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Nothing,
    /// After a hint a pick goes first, and durable claims wait until it is answered, or until this time: most jobs are
    /// held, and two statements at once take longer than one.
    PickFirst {
        until: Instant,
        /// How many jobs were announced that no pick has found yet.
        missing: usize,
    },
}

impl State {
    fn missing(self) -> usize {
        match self {
            State::Nothing => 0,
            State::PickFirst { missing, .. } => missing,
        }
    }
}

impl Announced {
    pub(super) fn add(&mut self, now: Instant, count: usize) {
        self.state = match self.state {
            State::Nothing => State::PickFirst { until: now + PICK_FIRST, missing: count },
            State::PickFirst { until, missing } => State::PickFirst { until, missing: missing + count },
        };
    }

    /// Lets a pick go before durable claims.
    pub(super) fn pick_first(&mut self, now: Instant) {
        self.state = State::PickFirst { until: now + PICK_FIRST, missing: self.state.missing() };
    }

    pub(super) fn is_pick_awaited(&self) -> bool {
        self.state != State::Nothing
    }

    /// Whether durable claims still wait.
    pub(super) fn goes_first(&self, now: Instant) -> bool {
        matches!(self.state, State::PickFirst { until, .. } if now < until)
    }

    /// A pick brought jobs with these ids. Jobs that were there before the announcement do not count.
    pub(super) fn on_picked(&mut self, ids: impl Iterator<Item = i64> + Clone, is_full: bool) -> Found {
        let new = ids.clone().filter(|id| *id > self.highest_id).count();
        self.highest_id = ids.fold(self.highest_id, i64::max);
        let announced = self.state.missing();
        if is_full {
            if let State::PickFirst { missing, .. } = &mut self.state {
                *missing = missing.saturating_sub(new);
            }
            return Found::Full;
        }
        self.state = State::Nothing;
        // If there are more new jobs, some of them were announced by a notification that is still to come.
        match new > 0 && new == announced {
            true => Found::All,
            false => Found::NotAll { is_missing: new < announced },
        }
    }

    /// Whether the time is over in which a pick should have been answered, and jobs are still to be found.
    pub(super) fn on_timer(&mut self, now: Instant) -> Option<bool> {
        match self.state {
            State::PickFirst { until, missing } if until <= now => {
                self.state = State::Nothing;
                Some(missing > 0)
            }
            State::PickFirst { .. } | State::Nothing => None,
        }
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        match self.state {
            State::Nothing => None,
            State::PickFirst { until, .. } => Some(until),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn jobs_are_asked_for_when_they_become_due() {
        let now = Instant::now();
        let mut due = DueTimes::default();
        due.on_polled(now, vec![now + SECOND, now + 2 * SECOND], SECOND);
        assert_eq!(due.next_timer(), Some(now + SECOND));
        assert!(!due.on_timer(now));
        assert!(due.on_timer(now + SECOND) && !due.is_unknown);
        assert!(due.on_timer(now + 2 * SECOND));
        assert!(due.take_unknown(), "there may be more than the poll returned");
        assert!(!due.take_unknown(), "a poll is asked for once");
    }

    #[test]
    fn a_due_job_that_others_hold_is_asked_for_less_and_less_often() {
        let now = Instant::now();
        let mut due = DueTimes::default();
        let mut pauses = Vec::new();
        for _ in 0..12 {
            due.on_polled(now, vec![now], SECOND);
            let again = due.next_timer().unwrap();
            pauses.push(again - now);
            assert!(due.on_timer(again));
        }
        assert_eq!(pauses[0], Duration::ZERO, "the first time at once");
        assert!(pauses[1] > Duration::ZERO && pauses[11] == SECOND, "{pauses:?}");
        due.on_found();
        due.on_polled(now, vec![now], SECOND);
        assert_eq!(due.next_timer(), Some(now));
    }

    #[test]
    fn frequent_polls_do_not_put_off_the_next_claim() {
        let now = Instant::now();
        let mut due = DueTimes::default();
        for _ in 0..6 {
            due.on_polled(now, vec![now], SECOND);
            let again = due.next_timer().unwrap();
            assert!(due.on_timer(again));
        }
        due.on_polled(now, vec![now], SECOND);
        let again = due.next_timer().unwrap();
        due.on_polled(now + SECOND / 100, vec![now], SECOND);
        assert_eq!(due.next_timer(), Some(again));
        due.on_polled(now + SECOND / 100, vec![now + 2 * SECOND], SECOND);
        assert_eq!(due.next_timer(), Some(now + 2 * SECOND), "another worker has the job");
    }

    #[test]
    fn a_pick_is_compared_with_what_was_announced() {
        let now = Instant::now();
        // Announced, ids of the pick, whether it was full, result.
        let cases: [(usize, &[i64], bool, Found); 6] = [
            (2, &[11, 12], false, Found::All),
            (2, &[11], false, Found::NotAll { is_missing: true }),
            (1, &[11, 12], false, Found::NotAll { is_missing: false }),
            (1, &[9, 11], false, Found::All),
            (1, &[9], false, Found::NotAll { is_missing: true }),
            (3, &[11], true, Found::Full),
        ];
        for (count, ids, is_full, expected) in cases {
            let mut announced = Announced { highest_id: 10, ..Announced::default() };
            announced.add(now, count);
            assert!(announced.goes_first(now) && !announced.goes_first(now + PICK_FIRST));
            let found = announced.on_picked(ids.iter().copied(), is_full);
            assert_eq!(found, expected, "{count} {ids:?} {is_full}");
            assert_eq!(announced.is_pick_awaited(), is_full);
        }
    }

    #[test]
    fn each_event_leads_to_one_state() {
        let (now, later) = (Instant::now(), Instant::now() + SECOND);
        let first = |since: Instant, missing| State::PickFirst { until: since + PICK_FIRST, missing };
        // The event, at a later time, and the states that follow Nothing, and PickFirst with 3 missing jobs.
        type Event = (&'static str, fn(&mut Announced, Instant), [State; 2]);
        let table: [Event; 5] = [
            ("2 announced", |one, now| one.add(now, 2), [first(later, 2), first(now, 5)]),
            ("pick first", |one, now| one.pick_first(now), [first(later, 0), first(later, 3)]),
            ("picked", |one, _| _ = one.on_picked([1].into_iter(), false), [State::Nothing; 2]),
            ("full pick", |one, _| _ = one.on_picked([1].into_iter(), true), [State::Nothing, first(now, 2)]),
            ("timer", |one, now| _ = one.on_timer(now), [State::Nothing; 2]),
        ];
        for (event, apply, expected) in table {
            for (before, after) in [State::Nothing, first(now, 3)].into_iter().zip(expected) {
                let mut announced = Announced { state: before, highest_id: 0 };
                apply(&mut announced, later);
                assert_eq!(announced.state, after, "{event}, {before:?}");
            }
        }
    }

    #[test]
    fn what_no_pick_brings_in_time_is_asked_for_otherwise() {
        let now = Instant::now();
        let mut announced = Announced::default();
        assert_eq!(announced.on_timer(now), None);
        announced.add(now, 1);
        assert_eq!(announced.on_timer(now), None, "not yet");
        assert_eq!(announced.on_timer(now + PICK_FIRST), Some(true));
        announced.pick_first(now);
        assert_eq!(announced.on_timer(now + PICK_FIRST), Some(false), "nothing was announced");
    }
}
