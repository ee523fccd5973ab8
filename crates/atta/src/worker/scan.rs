//! Where picks begin: at the very start of the index, or where the last one ended.
//!
//! What was done stays in the index until a vacuum, and a pick from the start walks over all of it. So one follows
//! another only after a rest, some times as long as it took; those between begin at the cursor. They find what was
//! added since, and nearly all that becomes due. They miss what is more urgent, what a slow transaction added, and
//! what others gave back: for these a pick from the start is owed, and comes when the rest is over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};

use crate::Job;

/// The rest after a pick from the start, in its own durations, while there is more behind the cursor than can be taken.
const REST_WHILE_FULL: u32 = 20;

/// The same while all that is behind the cursor is taken: a fifth of the time of one lane, at the most.
const REST: u32 = 4;

/// Nothing is gained by a rest from a pick that is as quick as this.
const QUICK: Duration = Duration::from_millis(2);

/// Jobs are seen in the order of their commits, not of their times: so far back is looked for late ones each time.
const OVERLAP: TimeDelta = TimeDelta::milliseconds(100);

/// A pick looks at what comes after this.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cursor {
    pub(crate) priority: i16,
    /// None is before every time.
    pub(crate) run_at: Option<DateTime<Utc>>,
    pub(crate) id: i64,
}

impl Cursor {
    /// Before every job.
    pub(crate) const START: Cursor = Cursor { priority: i16::MIN, run_at: None, id: i64::MIN };

    /// A little before the last of the most urgent of these: what is less urgent is behind it as a whole.
    fn before_last(jobs: impl Iterator<Item = (i16, DateTime<Utc>)>) -> Option<Cursor> {
        let (priority, run_at) =
            jobs.min_by_key(|(priority, run_at)| (*priority, std::cmp::Reverse(*run_at)))?;
        Some(Cursor { priority, run_at: run_at.checked_sub_signed(OVERLAP), id: i64::MIN })
    }
}

/// The picks of one worker, as to where they begin.
#[derive(Debug)]
pub(crate) struct Scan {
    cursor: Cursor,
    /// A pick from the start is on its way.
    is_at_start: bool,
    /// Something that is not behind the cursor may have come since the last pick from the start.
    owes_start: bool,
    /// When the last pick from the start came back, and how long it took.
    last_start: Option<(Instant, Duration)>,
    /// The last pick brought all that it asked for.
    is_full: bool,
    /// If not, each pick that comes back short is followed by one from the start, at once.
    rests: bool,
}

impl Scan {
    /// Without rests, nothing that is due is left out for a moment.
    pub(crate) fn new(rests: bool) -> Scan {
        let (cursor, last_start) = (Cursor::START, None);
        Scan { cursor, is_at_start: false, owes_start: false, last_start, is_full: false, rests }
    }

    /// Not while a pick is on its way from the start and nothing is known of where it will end: another would walk the same
    /// way beside it.
    pub(crate) fn may_send(&self) -> bool {
        !(self.is_at_start && self.cursor == Cursor::START)
    }

    /// Where the next pick begins, which is sent by this.
    pub(crate) fn send(&mut self, now: Instant) -> Cursor {
        let is_time = !self.is_at_start && self.start_at().is_none_or(|time| time <= now);
        if is_time {
            (self.is_at_start, self.owes_start) = (true, false);
            return Cursor::START;
        }
        self.owes_start = true;
        self.cursor
    }

    /// A pick brought all that it asked for, and this is the last of it.
    pub(crate) fn on_full(&mut self, last: Cursor) {
        (self.cursor, self.is_full) = (last, true);
    }

    /// A pick came back with these.
    pub(crate) fn on_picked(&mut self, from: Cursor, jobs: &[Arc<Job>], is_full: bool, took: Duration) {
        self.is_full = is_full;
        if from == Cursor::START {
            self.is_at_start = false;
            self.last_start = Some((Instant::now(), took));
        }
        if !is_full {
            self.move_to(from, Cursor::before_last(jobs.iter().map(|job| (job.priority, job.run_at))));
        }
    }

    fn move_to(&mut self, from: Cursor, cursor: Option<Cursor>) {
        let Some(cursor) = cursor else { return };
        let is_same = cursor.priority == self.cursor.priority;
        // One that comes back late does not go back behind what was taken since.
        if (is_same && cursor.run_at > self.cursor.run_at) || (!is_same && from == Cursor::START) {
            self.cursor = cursor;
        }
    }

    /// A pick failed, and brought nothing.
    pub(crate) fn on_error(&mut self) {
        (self.is_at_start, self.last_start) = (false, None);
    }

    /// Whether a pick from the start has become due.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.owes_start && !self.is_at_start && self.start_at().is_none_or(|time| time <= now)
    }

    pub(crate) fn owes_start(&self) -> bool {
        self.owes_start
    }

    /// When the pick from the start that is owed becomes due.
    pub(crate) fn next_timer(&self, now: Instant) -> Option<Instant> {
        self.start_at().filter(|time| self.owes_start && !self.is_at_start && *time > now)
    }

    /// When the rest is over. None: there is none.
    fn start_at(&self) -> Option<Instant> {
        let (ended, took) = self.last_start?;
        if self.is_full {
            return Some(ended + took * REST_WHILE_FULL);
        }
        (self.rests && took > QUICK).then(|| ended + took * REST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn time(ms: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(1_000_000 + ms).unwrap()
    }

    fn at(priority: i16, ms: i64) -> Cursor {
        Cursor { priority, run_at: Some(time(ms)), id: i64::MIN }
    }

    #[test]
    fn the_start_is_rested_from_and_owed() {
        let mut scan = Scan::new(true);
        assert_eq!(scan.send(Instant::now()), Cursor::START);
        scan.on_full(at(0, 5));
        assert_eq!(scan.send(Instant::now()), at(0, 5), "one from the start at a time");
        assert!(!scan.is_due(Instant::now()), "it is on its way");
        scan.on_picked(Cursor::START, &[], false, 100 * MS);
        let (now, later) = (Instant::now(), Instant::now() + 400 * MS);
        assert!(!scan.is_due(now) && scan.next_timer(now).is_some_and(|time| time <= later));
        assert_eq!(scan.send(now), at(0, 5));
        assert!(scan.is_due(later));
        assert_eq!(scan.send(later), Cursor::START);
        assert!(!scan.owes_start());
        scan.on_picked(Cursor::START, &[], true, 100 * MS);
        assert_eq!(scan.send(later), at(0, 5), "a longer rest");
        scan.on_error();
        assert_eq!(scan.send(now), Cursor::START, "an error may have hidden anything");
    }

    #[test]
    fn the_first_pick_goes_alone_until_it_knows_where_it_ends() {
        let mut scan = Scan::new(true);
        assert!(scan.may_send());
        scan.send(Instant::now());
        assert!(!scan.may_send());
        scan.on_full(at(0, 5));
        assert!(scan.may_send(), "the next begins where it ends");
        let mut scan = Scan::new(true);
        scan.send(Instant::now());
        scan.on_picked(Cursor::START, &[], false, MS);
        assert!(scan.may_send(), "it has come back");
    }

    #[test]
    fn a_quick_pick_needs_no_rest() {
        let mut scan = Scan::new(true);
        for _ in 0..3 {
            assert_eq!(scan.send(Instant::now()), Cursor::START);
            scan.on_picked(Cursor::START, &[], false, MS);
            assert!(!scan.owes_start());
        }
    }

    #[test]
    fn without_rests_a_short_pick_is_followed_by_one_from_the_start() {
        let (mut scan, now) = (Scan::new(false), Instant::now());
        assert_eq!(scan.send(now), Cursor::START);
        scan.on_full(at(0, 5));
        scan.on_picked(Cursor::START, &[], true, 100 * MS);
        assert_eq!(scan.send(now), at(0, 5));
        assert!(!scan.is_due(now));
        scan.on_picked(at(0, 5), &[], false, MS);
        assert!(scan.is_due(now));
        assert_eq!(scan.send(now), Cursor::START);
    }

    #[test]
    fn the_cursor_stands_before_the_last_of_the_most_urgent() {
        let jobs = [(1, time(900)), (0, time(300)), (0, time(500)), (0, time(400))];
        assert_eq!(Cursor::before_last(jobs.into_iter()), Some(at(0, 400)));
        assert_eq!(Cursor::before_last([].into_iter()), None);
    }

    #[test]
    fn the_cursor_goes_forward_and_the_start_decides_how_urgent() {
        let mut scan = Scan::new(true);
        scan.move_to(Cursor::START, Some(at(0, 500)));
        scan.move_to(at(0, 0), Some(at(0, 400)));
        assert_eq!(scan.cursor, at(0, 500));
        scan.move_to(at(0, 500), Some(at(3, 600)));
        assert_eq!(scan.cursor, at(0, 500));
        scan.move_to(Cursor::START, Some(at(-3, 300)));
        assert_eq!(scan.cursor, at(-3, 300));
    }
}
