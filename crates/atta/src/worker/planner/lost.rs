//! Claims whose reply was lost: they may have taken jobs that this worker does not know of.
//!
//! Such jobs are searched for, and returned, before the next claim. A server that was still executing the claim may have
//! committed it after that search, so the search is repeated a recovery threshold later.
//!
//! The reply to a search may be lost, too, and the server may execute it when this worker has searched again and claimed
//! since. This is harmless: a search consists of a statement that only reads (find_unknown.sql), and of one that returns
//! the claims that were found, each by the time of the claim (return_claimed.sql). A newer claim has another time. No claim
//! is sent while a search is under way, so what it finds is unknown to this worker.
//!
//! | state | what happens | next state |
//! |---|---|---|
//! | `Nothing` | a reply is lost | `SearchNow` |
//! | `Nothing` | the tables have triggers | `SearchLater` |
//! | `SearchNow` | the search found all that there was | `SearchLater`, or `Nothing` if no reply was lost without an error of the server |
//! | `SearchLater` | its time has come | `SearchAgain` |
//! | `SearchAgain` | other claims are not answered in time | `SearchLater` |
//! | `SearchAgain` | the search found nothing | `Nothing` |

use std::time::{Duration, Instant};

use super::super::backoff::Backoff;

/// How long the second search may keep other claims waiting.
const LONGEST_HOLD_UP: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Nothing,
    SearchNow,
    SearchLater(Instant),
    /// No claim is sent. If those that are under way are not answered by this time, the search is put off. None: the
    /// search is under way.
    SearchAgain(Option<Instant>),
}

#[derive(Debug)]
pub(super) struct LostReplies {
    state: State,
    threshold: Duration,
    /// When a reply was lost last, without an error of the server.
    lost_at: Option<Instant>,
    errors: Backoff,
    not_before: Option<Instant>,
}

impl LostReplies {
    pub(super) fn new(threshold: Duration) -> LostReplies {
        LostReplies {
            state: State::Nothing,
            threshold,
            lost_at: None,
            errors: Backoff::default(),
            not_before: None,
        }
    }

    /// Whether nothing may be claimed before the next search.
    pub(super) fn holds_up_claims(&self) -> bool {
        matches!(self.state, State::SearchNow | State::SearchAgain(_))
    }

    /// Whether this worker can have no lock that it does not know of.
    pub(super) fn knows_all(&self, now: Instant) -> bool {
        let is_recent = |lost_at: Instant| now < lost_at + self.threshold;
        !self.holds_up_claims() && !self.lost_at.is_some_and(is_recent)
    }

    /// The reply to a claim was lost. `has_answer` if the server sent an error.
    pub(super) fn on_lost_reply(&mut self, now: Instant, has_answer: bool) {
        self.state = State::SearchNow;
        if !has_answer {
            self.lost_at = Some(now);
        }
        self.not_before = Some(now + self.errors.next());
    }

    /// A task that claims has panicked. Nobody knows what it had claimed.
    pub(super) fn on_panic(&mut self) {
        self.state = State::SearchNow;
    }

    /// A claim may have taken effect only in part: a trigger of the application may have cancelled the change of a job, but
    /// not that of its queue. This is searched for once per threshold.
    pub(super) fn search_later(&mut self, now: Instant) {
        if self.state == State::Nothing {
            self.state = State::SearchLater(now + self.threshold);
        }
    }

    /// A search failed, or its reply was lost. It is repeated.
    pub(super) fn on_error(&mut self, now: Instant) {
        self.not_before = Some(now + self.errors.next());
    }

    /// How many searches failed in a row.
    pub(super) fn tries(&self) -> u32 {
        self.errors.tries()
    }

    /// Whether a search is to be sent now. `is_quiet` if no claim is under way: only then does the worker know all jobs
    /// that it has.
    pub(super) fn search(&mut self, now: Instant, is_quiet: bool) -> bool {
        if matches!(self.state, State::SearchAgain(Some(until)) if until <= now && !is_quiet) {
            self.state = State::SearchLater(now + self.threshold);
        }
        let is_time = self.not_before.is_none_or(|time| time <= now);
        if !self.holds_up_claims() || !is_quiet || !is_time {
            return false;
        }
        if self.state != State::SearchNow {
            self.state = State::SearchAgain(None);
        }
        true
    }

    /// A search found this number of jobs, and returned them; others kept `blocked` jobs locked.
    pub(super) fn on_searched(&mut self, now: Instant, found: usize, blocked: usize, is_ending: bool) {
        (self.errors, self.not_before) = (Backoff::default(), None);
        if blocked > 0 {
            // They are searched for again later: by this worker or, if it ends, by others.
            self.lost_at = Some(now);
        }
        let is_last = self.state != State::SearchNow && found + blocked == 0;
        self.state = match is_last || is_ending || self.lost_at.is_none() {
            true => State::Nothing,
            false => State::SearchLater(now + self.threshold),
        };
    }

    /// The time of the second search may have come.
    pub(super) fn on_timer(&mut self, now: Instant) {
        if matches!(self.state, State::SearchLater(time) if time <= now) {
            (self.state, self.not_before) = (State::SearchAgain(Some(now + LONGEST_HOLD_UP)), None);
        }
    }

    /// The worker ends, so that the second search can't be later.
    pub(super) fn on_shutdown(&mut self) {
        if matches!(self.state, State::SearchLater(_) | State::SearchAgain(Some(_))) {
            (self.state, self.not_before) = (State::SearchNow, None);
        }
    }

    pub(super) fn next_timer(&self, now: Instant) -> Option<Instant> {
        let time = match self.state {
            State::SearchLater(time) => Some(time),
            State::SearchAgain(until) => until.filter(|time| *time > now),
            State::Nothing | State::SearchNow => None,
        };
        let retry = self.not_before.filter(|time| self.holds_up_claims() && *time > now);
        time.into_iter().chain(retry).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLD: Duration = Duration::from_secs(30);

    /// A second, by which every pause after an error is over.
    fn later(now: Instant) -> Instant {
        now + Duration::from_secs(1)
    }

    #[test]
    fn a_lost_reply_is_searched_for_twice() {
        let start = Instant::now();
        let mut lost = LostReplies::new(THRESHOLD);
        assert!(!lost.holds_up_claims() && lost.knows_all(start));
        lost.on_lost_reply(start, false);
        assert!(lost.holds_up_claims() && !lost.knows_all(start));
        assert!(!lost.search(later(start), false), "claims are under way");
        assert!(lost.search(later(start), true));
        lost.on_searched(later(start), 2, 0, false);
        assert!(!lost.holds_up_claims() && !lost.knows_all(later(start)), "it may be committed late");
        let second = lost.next_timer(later(start)).unwrap();
        assert_eq!(second, later(start) + THRESHOLD);
        lost.on_timer(second);
        assert!(lost.holds_up_claims() && lost.search(second, true));
        lost.on_searched(second, 0, 0, false);
        assert!(!lost.holds_up_claims() && lost.knows_all(second) && lost.next_timer(second).is_none());
    }

    #[test]
    fn the_second_search_is_put_off_rather_than_hold_up_claims_for_long() {
        let start = Instant::now();
        let mut lost = LostReplies::new(THRESHOLD);
        lost.on_lost_reply(start, false);
        assert!(lost.search(later(start), true));
        lost.on_searched(later(start), 0, 0, false);
        let second = lost.next_timer(later(start)).unwrap();
        lost.on_timer(second);
        assert!(!lost.search(second, false) && lost.holds_up_claims());
        assert!(!lost.search(second + LONGEST_HOLD_UP, false));
        assert!(!lost.holds_up_claims());
        assert_eq!(lost.next_timer(second), Some(second + LONGEST_HOLD_UP + THRESHOLD));
    }

    #[test]
    fn a_refusal_of_the_server_is_searched_for_once() {
        let start = Instant::now();
        let mut lost = LostReplies::new(THRESHOLD);
        lost.on_lost_reply(start, true);
        assert!(lost.search(later(start), true));
        lost.on_searched(later(start), 0, 0, false);
        assert!(lost.knows_all(later(start)) && lost.next_timer(later(start)).is_none());
    }

    #[test]
    fn a_search_that_fails_is_repeated_after_a_pause() {
        let start = Instant::now();
        let mut lost = LostReplies::new(THRESHOLD);
        lost.on_lost_reply(start, false);
        assert!(lost.search(later(start), true));
        lost.on_error(later(start));
        assert!(!lost.search(later(start), true), "not at once");
        let retry = lost.next_timer(later(start)).unwrap();
        assert!(lost.search(retry, true));
        assert_eq!(lost.tries(), 2);
    }

    #[test]
    fn a_shutdown_does_not_wait_for_the_second_search() {
        let start = Instant::now();
        let mut lost = LostReplies::new(THRESHOLD);
        lost.on_lost_reply(start, false);
        assert!(lost.search(later(start), true));
        lost.on_searched(later(start), 0, 0, false);
        lost.on_shutdown();
        assert!(lost.search(later(start), true), "at once");
        lost.on_searched(later(start), 0, 0, true);
        assert!(!lost.holds_up_claims());
        assert!(!lost.knows_all(later(start)), "the worker stays registered, so that others find the rest");
    }

    #[test]
    fn with_triggers_locks_are_searched_for_once_per_threshold_and_at_the_end() {
        let now = Instant::now();
        let mut lost = LostReplies::new(THRESHOLD);
        lost.search_later(now);
        lost.search_later(later(now));
        assert_eq!(lost.next_timer(now), Some(now + THRESHOLD), "the first time counts");
        assert!(!lost.holds_up_claims() && !lost.search(now, true));
        lost.on_timer(now + THRESHOLD);
        assert!(lost.holds_up_claims() && lost.search(now + THRESHOLD, true));
        lost.on_searched(now + THRESHOLD, 0, 0, false);
        assert!(lost.next_timer(now + THRESHOLD).is_none() && lost.knows_all(now + THRESHOLD));
        lost.search_later(now + THRESHOLD);
        lost.on_shutdown();
        assert!(lost.search(now + THRESHOLD, true));
    }
}
