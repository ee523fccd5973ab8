//! Pacing of held claims: where picks begin ([`Scan`]), how large they are ([`Size`]), and the batches that are held
//! ([`Batches`]).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::super::backoff::Backoff;
use super::batches::Batches;
use super::pauses::{Pauses, Why};
use super::rules::{Mode, Rules};
use super::scan::Scan;
use super::size::Size;

/// Picks that are under way, or whose batches run or are being committed: while the jobs of one run, the others keep
/// the server and the disk busy. In measurements, two lanes were slower and four were not faster.
pub(crate) const HOLDING_LANES: usize = 3;

/// Further lanes may hold jobs while as many others take long to commit: row locks are the claim, so such a transaction
/// stays open as long as its statement takes.
pub(crate) const SLOW_LANES: usize = 3;

/// A commit of a batch that takes longer than this counts as slow.
const SLOW: Duration = Duration::from_secs(1);

/// How long nothing is held after the database has refused to commit a batch, which has freed all of its jobs, or to send
/// the jobs of a pick.
const REFUSED: Duration = Duration::from_secs(60);

/// After this time, the result of a pick is out of date if a durable claim finds jobs that may have been added later.
const OUTDATED: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct HeldClaims {
    pub(super) scan: Scan,
    pub(super) size: Size,
    pub(super) batches: Batches,
    pauses: Pauses,
    errors: Backoff,
    /// Lanes that pick, hold or commit.
    away: usize,
    /// Batches whose jobs are claimed again because their connection was lost, by their lanes.
    promoting: HashMap<u64, Promotion>,
    /// Nothing is held until then, because the database refused to commit a batch or to send picked jobs.
    refused_until: Option<Instant>,
    last_pick: LastPick,
    last_lane: u64,
}

/// Whether the rows of a batch can be claimed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promotion {
    /// No attempt was answered yet.
    UnderWay,
    /// An attempt was answered and left jobs unclaimed: other transactions keep them locked, or the database refuses
    /// the claim.
    Blocked,
}

/// The pick that was sent last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastPick {
    /// None was sent.
    Nothing,
    UnderWay {
        sent_at: Instant,
    },
    Answered {
        sent_at: Instant,
        took: Duration,
    },
}

impl LastPick {
    fn on_answered(&mut self, now: Instant) {
        if let LastPick::UnderWay { sent_at } | LastPick::Answered { sent_at, .. } = *self {
            *self = LastPick::Answered { sent_at, took: now.saturating_duration_since(sent_at) };
        }
    }

    /// A lane has failed. The planner no longer waits for the answer of a pick.
    fn on_error(&mut self) {
        if let LastPick::UnderWay { sent_at } = *self {
            *self = LastPick::Answered { sent_at, took: Duration::ZERO };
        }
    }

    /// Until when its result counts as up to date: at least ten times as long as the answer took. So picks that are
    /// sent because the last one is outdated take a small part of the time.
    fn fresh_until(self) -> Option<Instant> {
        match self {
            LastPick::Nothing => None,
            LastPick::UnderWay { sent_at } => Some(sent_at + OUTDATED),
            LastPick::Answered { sent_at, took } => Some(sent_at + OUTDATED.max(took * 10)),
        }
    }
}

impl HeldClaims {
    pub(super) fn new(rules: &Rules) -> HeldClaims {
        HeldClaims {
            // A run that ends when no job is left must not pause before it has asked for all jobs.
            scan: Scan::new(rules.mode == Mode::UntilShutdown, rules.patience),
            size: Size::new(rules.slots),
            batches: Batches::default(),
            pauses: Pauses::default(),
            errors: Backoff::default(),
            away: 0,
            promoting: HashMap::new(),
            refused_until: None,
            last_pick: LastPick::Nothing,
            last_lane: 0,
        }
    }

    pub(super) fn away(&self) -> usize {
        self.away
    }

    pub(super) fn promoting(&self) -> usize {
        self.promoting.len()
    }

    /// Whether every promotion is blocked.
    pub(super) fn are_promotions_blocked(&self) -> bool {
        self.promoting.values().all(|promotion| *promotion == Promotion::Blocked)
    }

    /// When the pick was sent that is not answered yet.
    pub(super) fn pick_sent_at(&self) -> Option<Instant> {
        match self.last_pick {
            LastPick::UnderWay { sent_at } => Some(sent_at),
            LastPick::Nothing | LastPick::Answered { .. } => None,
        }
    }

    pub(super) fn is_failing(&self) -> bool {
        self.errors.tries() > 0
    }

    /// Whether picks have failed, and the next one is not due yet.
    pub(super) fn is_pausing_for_errors(&self, now: Instant) -> bool {
        self.is_failing() && !self.pauses.are_over(now)
    }

    pub(super) fn tries(&self) -> u32 {
        self.errors.tries()
    }

    /// Whether another lane may pick now. `is_blocked` if held jobs can't start before another pick is answered.
    pub(super) fn has_lane(&self, now: Instant, is_blocked: bool) -> bool {
        let most = HOLDING_LANES + self.slow_lanes(now).max(usize::from(is_blocked));
        self.away < most && self.pauses.are_over(now)
    }

    /// Lanes whose commit takes so long that others may hold instead of them.
    fn slow_lanes(&self, now: Instant) -> usize {
        let slow = self.batches.settling_since().filter(|since| *since + SLOW <= now).count();
        // A promotion does not count as a lane.
        slow.saturating_sub(self.promoting.len()).min(SLOW_LANES)
    }

    /// A pick is sent. Returns the number of its lane.
    pub(super) fn on_sent(&mut self, now: Instant) -> u64 {
        self.away += 1;
        self.last_lane += 1;
        self.last_pick = LastPick::UnderWay { sent_at: now };
        self.last_lane
    }

    /// The pick was answered.
    pub(super) fn on_answered(&mut self, now: Instant) {
        self.last_pick.on_answered(now);
    }

    /// Whether jobs that a claim finds now may be newer than all picks.
    pub(super) fn is_outdated(&self, now: Instant) -> bool {
        self.last_pick.fresh_until().is_none_or(|until| until <= now)
    }

    /// A lane has ended.
    pub(super) fn on_back(&mut self) {
        self.away -= 1;
    }

    pub(super) fn on_success(&mut self) {
        self.errors = Backoff::default();
    }

    pub(super) fn on_error(&mut self, now: Instant) {
        self.last_pick.on_error();
        self.scan.on_error();
        self.pauses.begin(Why::Errors, now + self.errors.next());
    }

    /// No pick is sent until then.
    pub(super) fn pause(&mut self, why: Why, until: Instant) {
        self.pauses.begin(why, until);
    }

    pub(super) fn begin_promoting(&mut self, lane: u64, promotion: Promotion) {
        self.promoting.insert(lane, promotion);
    }

    pub(super) fn end_promoting(&mut self, lane: u64) {
        self.promoting.remove(&lane);
    }

    /// The database refused to commit a batch, to claim its jobs again, or to send picked jobs. Returns whether this is
    /// new.
    pub(super) fn on_refused(&mut self, now: Instant) -> bool {
        self.refused_until.replace(now + REFUSED).is_none()
    }

    /// Whether there was a refusal recently.
    pub(super) fn is_refused(&self) -> bool {
        self.refused_until.is_some()
    }

    pub(super) fn on_timer(&mut self, now: Instant) {
        self.refused_until = self.refused_until.filter(|until| *until > now);
    }

    pub(super) fn next_timer(&self, now: Instant, hold_budget: Duration) -> Option<Instant> {
        let times = [
            self.pauses.until(now),
            self.batches.settling_since().map(|since| since + SLOW).filter(|time| *time > now).min(),
            self.batches.oldest().map(|began| began + hold_budget),
            self.refused_until,
        ];
        times.into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::super::batches::Batch;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn batch(lane: u64, began: Instant) -> Batch {
        Batch { lane, jobs: Vec::new(), known: Vec::new(), finished: Vec::new(), began }
    }

    #[test]
    fn three_lanes_hold_at_a_time_and_one_more_if_held_jobs_wait_for_a_pick() {
        let now = Instant::now();
        let mut held = HeldClaims::new(&Rules::for_tests(4));
        for lane in 1..=3 {
            assert!(held.has_lane(now, false));
            assert_eq!(held.on_sent(now), lane);
        }
        assert!(!held.has_lane(now, false) && held.has_lane(now, true));
        held.on_back();
        assert!(held.has_lane(now, false));
    }

    #[test]
    fn each_event_leads_to_one_state_of_the_last_pick() {
        use LastPick::{Answered, Nothing, UnderWay};
        let sent_at = Instant::now();
        let answered = |ms| Answered { sent_at, took: ms * MS };
        // The event, and the states that follow Nothing, UnderWay, and Answered after 1 ms.
        type Event = (&'static str, fn(&mut LastPick, Instant), [LastPick; 3]);
        let table: [Event; 2] = [
            ("answered after 3 ms", LastPick::on_answered, [Nothing, answered(3), answered(3)]),
            ("failed", |pick, _| pick.on_error(), [Nothing, answered(0), answered(1)]),
        ];
        for (event, apply, expected) in table {
            for (before, after) in [Nothing, UnderWay { sent_at }, answered(1)].into_iter().zip(expected) {
                let mut pick = before;
                apply(&mut pick, sent_at + 3 * MS);
                assert_eq!(pick, after, "{event}, {before:?}");
            }
        }
        assert_eq!(Nothing.fresh_until(), None);
        assert_eq!(UnderWay { sent_at }.fresh_until(), Some(sent_at + OUTDATED));
        assert_eq!(answered(9).fresh_until(), Some(sent_at + 90 * MS));
    }

    #[test]
    fn a_slow_commit_makes_room_for_another_lane() {
        let now = Instant::now();
        let mut held = HeldClaims::new(&Rules::for_tests(4));
        for lane in 1..=3 {
            held.on_sent(now);
            held.batches.open(batch(lane, now));
        }
        assert!(held.batches.begin_settling(now, 1, &[]).is_some());
        assert_eq!(held.next_timer(now, 50 * MS), Some(now + 50 * MS), "the budget of the other batches");
        assert!(!held.has_lane(now, false) && held.has_lane(now + SLOW, false));
        held.begin_promoting(1, Promotion::UnderWay);
        assert!(!held.has_lane(now + SLOW, false), "a batch that is claimed again has no lane");
        assert!(!held.are_promotions_blocked());
        held.begin_promoting(1, Promotion::Blocked);
        assert!(held.are_promotions_blocked());
        held.end_promoting(1);
        assert!(held.promoting() == 0 && held.are_promotions_blocked());
    }

    #[test]
    fn nothing_is_held_for_a_while_after_a_refusal() {
        let now = Instant::now();
        let mut held = HeldClaims::new(&Rules::for_tests(4));
        assert!(!held.is_refused());
        assert!(held.on_refused(now) && !held.on_refused(now + SLOW), "only the first is new");
        assert_eq!(held.next_timer(now, 50 * MS), Some(now + SLOW + REFUSED));
        held.on_timer(now + REFUSED);
        assert!(held.is_refused(), "the second refusal was later");
        held.on_timer(now + SLOW + REFUSED);
        assert!(!held.is_refused() && held.on_refused(now + SLOW + REFUSED));
    }

    #[test]
    fn after_an_error_no_pick_is_sent_for_a_while() {
        let now = Instant::now();
        let mut held = HeldClaims::new(&Rules::for_tests(4));
        held.on_sent(now);
        held.on_back();
        held.on_error(now);
        assert!(held.is_failing() && !held.has_lane(now, true));
        let until = held.next_timer(now, 50 * MS).unwrap();
        assert!(held.has_lane(until, false));
        held.on_success();
        assert!(!held.is_failing());
    }
}
