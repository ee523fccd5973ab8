//! What this worker's own heartbeats allow: to go on with its jobs, and to declare others dead. Pure: no database and
//! no clock.
//!
//! A worker whose heartbeats stopped for a threshold may have been declared dead, and other workers may have its jobs
//! by now. And a worker that could not send heartbeats can't distinguish dead workers from living ones that could not
//! send theirs either: after an outage that affects all workers, all of them look stale. Therefore a worker declares
//! others dead only after its own heartbeats have been continuous.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};

/// This worker's own heartbeats, shared by the parts of the worker.
pub(crate) struct Continuity {
    threshold: Duration,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
struct State {
    /// When the last answered heartbeat was sent; at first, when the worker was created.
    last: Instant,
    /// The server that answered it, identified by its start time.
    server: Option<DateTime<Utc>>,
    /// The server's time when it did.
    server_now: Option<DateTime<Utc>>,
    /// Since when heartbeats have been continuous: the time at which the first of them was answered.
    since: Option<Instant>,
    /// When a heartbeat was last answered after others may have declared this worker dead.
    resumed: Option<Instant>,
}

/// An answered heartbeat.
#[derive(Clone, Copy)]
pub(crate) struct Heartbeat {
    pub(crate) sent_at: Instant,
    pub(crate) answered_at: Instant,
    /// When the server was started. After a failover another server process is the primary, so the value changes then
    /// too.
    pub(crate) server_started_at: DateTime<Utc>,
    /// The server's time that was recorded.
    pub(crate) server_now: DateTime<Utc>,
    /// Whether the worker was still registered and had not been declared dead.
    pub(crate) was_registered: bool,
}

/// A worker's own heartbeats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnHeartbeats {
    /// For how long they have been continuous.
    pub(crate) continuous: Duration,
    /// The server's time of the last one that was answered.
    pub(crate) last: Option<DateTime<Utc>>,
}

impl Continuity {
    pub(crate) fn new(threshold: Duration, now: Instant) -> Continuity {
        let state = State { last: now, server: None, server_now: None, since: None, resumed: None };
        Continuity { threshold, state: Mutex::new(state) }
    }

    /// Records a heartbeat. Returns whether others may have declared this worker dead before it.
    pub(crate) fn note(&self, heartbeat: Heartbeat) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Heartbeat { sent_at, answered_at, server_started_at, server_now, was_registered } = heartbeat;
        // The longest time that can have passed on the server between the two heartbeats.
        let gap = answered_at.saturating_duration_since(state.last);
        let is_resumed = gap > self.threshold || !was_registered;
        let is_step = state.server_now.is_some_and(|last| self.is_step(server_now - last, gap));
        let is_continuous = was_registered
            && gap <= self.threshold / 2
            && state.server == Some(server_started_at)
            && !is_step;
        state.last = sent_at;
        (state.server, state.server_now) = (Some(server_started_at), Some(server_now));
        if !is_continuous {
            state.since = Some(answered_at);
        }
        if is_resumed {
            state.resumed = Some(answered_at);
        }
        is_resumed
    }

    /// Whether the server's clock was set between two heartbeats. The age of a heartbeat is measured by that clock: after a
    /// step forward all workers look stale, until each has sent its next heartbeat.
    fn is_step(&self, on_server: TimeDelta, here: Duration) -> bool {
        let here = TimeDelta::from_std(here).unwrap_or(TimeDelta::MAX);
        let limit = TimeDelta::from_std(self.threshold / 4).unwrap_or(TimeDelta::MAX);
        (on_server - here).abs() > limit
    }

    /// For how long heartbeats have been continuous: on one server, and without a gap of more than half a threshold.
    pub(crate) fn duration(&self, now: Instant) -> Duration {
        self.own_heartbeats(now).continuous
    }

    /// What this worker must know of its own heartbeats to declare others dead.
    pub(crate) fn own_heartbeats(&self, now: Instant) -> OwnHeartbeats {
        let state = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = now.saturating_duration_since(state.last) <= self.threshold / 2;
        let since = state.since.filter(|_| is_recent);
        let continuous = since.map(|since| now.saturating_duration_since(since)).unwrap_or_default();
        OwnHeartbeats { continuous, last: state.server_now }
    }

    /// Whether no heartbeat was answered for longer than the threshold. Then others may have declared this worker dead, and
    /// may recover every job that it claims durably, also one that it has only just claimed.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        let state = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_overdue(self.threshold, now)
    }

    /// Whether others may have recovered a job that this worker claimed at `claimed_at`.
    pub(crate) fn may_have_lost(&self, claimed_at: Instant, now: Instant) -> bool {
        let state = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_overdue(self.threshold, now) || state.resumed.is_some_and(|resumed| claimed_at < resumed)
    }
}

impl State {
    /// Before the first heartbeat was answered, nobody knows this worker.
    fn is_overdue(&self, threshold: Duration, now: Instant) -> bool {
        self.server.is_some() && now.saturating_duration_since(self.last) > threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLD: Duration = Duration::from_secs(30);

    /// A heartbeat in the table below: the seconds after the start at which it was sent and answered, the server, and
    /// whether the worker was registered.
    type Sent = (u64, u64, i64, bool);

    #[test]
    fn a_step_of_the_servers_clock_is_a_new_beginning() {
        // By how many seconds the clock is set, and whether that is a step. A quarter of a threshold is none.
        for (step, is_step) in [(0, false), (7, false), (-7, false), (9, true), (61, true), (-3600, true)] {
            let start = Instant::now();
            let continuity = Continuity::new(THRESHOLD, start);
            for (seconds, offset) in [(0, 0), (5, 0), (10, step)] {
                let at = after(start, seconds);
                continuity.note(Heartbeat {
                    sent_at: at,
                    answered_at: at,
                    server_started_at: DateTime::UNIX_EPOCH,
                    server_now: DateTime::from_timestamp(1_000_000 + seconds as i64 + offset, 0).unwrap(),
                    was_registered: true,
                });
            }
            let expected = Duration::from_secs(if is_step { 2 } else { 12 });
            assert_eq!(continuity.duration(after(start, 12)), expected, "{step}");
            assert!(!continuity.may_have_lost(start, after(start, 12)), "its own claims are not in question");
        }
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    fn note(continuity: &Continuity, start: Instant, (sent, answered, server, was_registered): Sent) -> bool {
        continuity.note(Heartbeat {
            sent_at: after(start, sent),
            answered_at: after(start, answered),
            server_started_at: DateTime::from_timestamp(server, 0).unwrap(),
            server_now: DateTime::from_timestamp(1_000_000 + answered as i64, 0).unwrap(),
            was_registered,
        })
    }

    #[test]
    fn heartbeats_are_continuous_until_a_gap_or_another_server() {
        // What happened, the time of the question, and for how long heartbeats have been continuous then.
        let table: [(&str, &[Sent], u64, u64); 9] = [
            ("nothing was sent yet", &[], 40, 0),
            ("one is a beginning", &[(0, 1, 7, true)], 10, 9),
            ("no gap", &[(0, 0, 7, true), (10, 10, 7, true), (20, 20, 7, true)], 31, 31),
            ("a gap of half a threshold is none", &[(0, 0, 7, true), (15, 15, 7, true)], 15, 15),
            ("a longer gap", &[(0, 0, 7, true), (16, 16, 7, true)], 20, 4),
            ("a late answer is a gap", &[(0, 0, 7, true), (10, 16, 7, true)], 20, 4),
            ("none came since", &[(0, 0, 7, true), (10, 10, 7, true)], 26, 0),
            ("another server, or one that was promoted", &[(0, 0, 7, true), (5, 5, 8, true)], 9, 4),
            ("it was declared dead", &[(0, 0, 7, true), (5, 5, 7, false)], 9, 4),
        ];
        for (what, heartbeats, asked, expected) in table {
            let start = Instant::now();
            let continuity = Continuity::new(THRESHOLD, start);
            for heartbeat in heartbeats {
                note(&continuity, start, *heartbeat);
            }
            let found = continuity.duration(after(start, asked));
            assert_eq!(found, Duration::from_secs(expected), "{what}");
        }
    }

    #[test]
    fn claims_before_a_gap_may_be_lost_and_claims_after_it_are_not() {
        let start = Instant::now();
        let continuity = Continuity::new(THRESHOLD, start);
        let lost = |claimed, now| continuity.may_have_lost(after(start, claimed), after(start, now));
        assert!(!note(&continuity, start, (10, 10, 7, true)));
        assert!(!lost(0, 40), "the last heartbeat is not older than the threshold");
        assert!(lost(0, 41));
        assert!(lost(39, 41), "a worker that is declared dead loses what it has only just claimed, too");
        assert!(note(&continuity, start, (41, 41, 7, true)), "the next heartbeat shows the gap");
        assert!(lost(40, 42));
        assert!(!lost(41, 42));
    }

    #[test]
    fn a_worker_that_was_declared_dead_may_have_lost_all() {
        let start = Instant::now();
        let continuity = Continuity::new(THRESHOLD, start);
        assert!(note(&continuity, start, (5, 5, 7, false)));
        assert!(continuity.may_have_lost(after(start, 4), after(start, 5)));
    }
}
