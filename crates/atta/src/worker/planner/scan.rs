//! Where the picks of held claims begin, and what they have seen.
//!
//! Jobs without a queue are found along an index by task, priority, run_at and id. The jobs of one task and one
//! priority are a **level**. A pick reads the due jobs of some levels, the most urgent level first, and so never reads
//! jobs that are due later or that belong to other tasks. Jobs with flags have levels of their own, along an index of
//! their own ([`Kind`]): those that are forbidden to this worker are not in the way of the others.
//!
//! Levels that are not known yet lie in the **gaps** between those that are known: before, between and after their
//! priorities. They are searched for (`find_levels.sql`) with the next pick after each hint.
//!
//! Completed jobs stay in the index until a vacuum. So each level has a position: a pick begins where the last one
//! ended. Jobs that become visible before the position (a late commit, an older run_at, a job that another worker
//! returned) are found by a pick from the start of all levels. Such a pick is due after every pick from a position, but
//! not before a pause in proportion to the duration of the last one. If that one was quick, there is no pause, and
//! every pick begins at the start.
//!
//! The order of jobs relies on [`Scan::known_to`]: every due job that is more urgent than that has been claimed.

mod answer;
mod freed;
mod gaps;
mod level;
mod pick;
mod request;
mod start;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Job;
use crate::job::Order;
use gaps::Gaps;
use level::Level;
use pick::Pick;
use request::share;
pub(crate) use request::{
    EVERYTHING, Gap, Kind, LevelKey, LevelRequest, NOTHING, Position, Request, Seen, before,
};
use start::StartPace;

/// The picks of one worker.
#[derive(Debug)]
pub(crate) struct Scan {
    tasks: Vec<Arc<str>>,
    levels: BTreeMap<LevelKey, Level>,
    gaps: Gaps,
    pick: Pick,
    /// A hint came in since the last pick was sent.
    is_hinted: bool,
    /// Nothing was forgotten since all gaps were last searched.
    is_known: bool,
    /// Jobs that became free while a pick was under way. It may have skipped them because they were locked.
    freed_meanwhile: Vec<Arc<Job>>,
    /// Picks that were answered and whose jobs are still being read: the most urgent job of each batch.
    undelivered: Vec<(u64, Order, Instant)>,
    /// Jobs that were picked and not begun, by the batch that is about to free them.
    freeing: Vec<(u64, Instant, Vec<Arc<Job>>)>,
    /// The last pick of each kind asked only for jobs that are more urgent than this.
    limited_to: [Order; 2],
    /// The last pick brought all that it asked for.
    is_full: bool,
    /// Whether a slow pick from the start is followed by a pause even if it brought less than it asked for. False in a
    /// run until no job is left, which must not wait before it has asked for all jobs.
    always_pauses: bool,
    /// How long jobs wait for a batch that is being read, or that is about to free more urgent ones.
    patience: Duration,
    starts: [StartPace; 2],
}

impl Scan {
    /// Without `always_pauses`, a pick from the start follows each one that came back short.
    pub(crate) fn new(always_pauses: bool, patience: Duration) -> Scan {
        Scan {
            tasks: Vec::new(),
            levels: BTreeMap::new(),
            gaps: Gaps::new(),
            pick: Pick::default(),
            is_hinted: false,
            is_known: false,
            freed_meanwhile: Vec::new(),
            undelivered: Vec::new(),
            freeing: Vec::new(),
            limited_to: [EVERYTHING; 2],
            is_full: false,
            always_pauses,
            patience,
            starts: Default::default(),
        }
    }

    /// The tasks whose jobs are held. A change makes everything unknown that it concerns.
    pub(crate) fn set_tasks(&mut self, tasks: &[Arc<str>]) {
        if self.tasks == tasks {
            return;
        }
        self.tasks = tasks.to_vec();
        self.gaps.forget_rest();
        self.levels.retain(|key, _| tasks.contains(&key.task_identifier));
        self.forget();
    }

    /// Whether the jobs of any task are held.
    pub(crate) fn has_tasks(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// Whether the last pick brought all that it asked for.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Whether a pick is under way that has not been answered.
    pub(crate) fn is_scanning(&self) -> bool {
        self.pick.is_under_way()
    }

    /// What the last picks were limited to.
    pub(crate) fn limited_to(&self) -> Order {
        self.limited_to[0].min(self.limited_to[1])
    }

    /// Due jobs may have been added to any level.
    pub(crate) fn hint(&mut self) {
        self.gaps.hint(self.has_tasks());
        self.hint_levels();
    }

    fn hint_levels(&mut self) {
        self.is_hinted = true;
        self.levels.values_mut().for_each(|level| level.is_wanted = true);
        self.starts.iter_mut().for_each(StartPace::hint);
    }

    /// Jobs were announced. They are likely to be of known levels, so those are asked for first;
    /// [`Scan::settle_announced`] follows when it is known whether all were found.
    pub(crate) fn hint_announced(&mut self, is_idle: bool) {
        self.gaps.on_announced(!self.levels.is_empty());
        self.hint_levels();
        if is_idle {
            self.forget_known();
        }
    }

    /// Whether a pick found all jobs that were announced. If not, there may be levels that are not known yet.
    pub(crate) fn settle_announced(&mut self, found_all: bool) {
        self.is_known |= self.gaps.settle_announced(found_all) && found_all;
    }

    /// Nothing is known until the next answer: a hint came in that no pick can follow now.
    pub(crate) fn forget(&mut self) {
        self.hint();
        self.forget_known();
    }

    fn forget_known(&mut self) {
        self.is_known = self.tasks.is_empty();
        self.pick.on_forgotten();
    }

    /// Nothing is known until the next answer, if a hint came in since the last pick was sent.
    pub(crate) fn forget_if_hinted(&mut self) {
        if self.is_hinted && self.is_known {
            self.forget();
        }
    }

    /// Whether there is something to ask for.
    pub(crate) fn has_more(&self) -> bool {
        self.is_asking() || [Kind::Plain, Kind::Flagged].into_iter().any(|kind| self.owes_start(kind))
    }

    /// The same without picks from the start that are owed, which may be due much later.
    pub(crate) fn is_asking(&self) -> bool {
        self.gaps.is_asked()
            || self.limited_to() < EVERYTHING
            || !self.freeing.is_empty()
            || self.levels.values().any(Level::is_asked)
    }

    /// Whether a pick from the start is owed, and has levels to read.
    fn owes_start(&self, kind: Kind) -> bool {
        self.starts[kind as usize].is_owed && self.levels.keys().any(|key| key.kind == kind)
    }

    /// Whether a pick of jobs that are more urgent than `before` can be sent now, and has something to ask for.
    pub(crate) fn may_send(&self, now: Instant, before: Order) -> bool {
        let wants_levels = |(key, level): (&LevelKey, &Level)| level.is_asked() && key.priority <= before.0;
        let is_due = self.gaps.is_search_due() || self.levels.iter().any(wants_levels);
        !self.is_scanning() && (is_due || self.start_kind(now).is_some())
    }

    /// Asks for what lies behind the limits of the last picks.
    pub(crate) fn ask_beyond_limit(&mut self) {
        for kind in [Kind::Plain, Kind::Flagged] {
            let limit = self.limited_to[kind as usize];
            if limit == EVERYTHING {
                continue;
            }
            let behind =
                self.levels.iter_mut().filter(|(key, _)| key.kind == kind && key.priority >= limit.0);
            if behind.map(|(_, level)| level.is_wanted = true).count() == 0 {
                self.limited_to[kind as usize] = EVERYTHING;
            }
        }
    }

    /// When a pick from the start becomes due.
    pub(crate) fn next_timer(&self, now: Instant) -> Option<Instant> {
        let kinds = [Kind::Plain, Kind::Flagged];
        let times = kinds.into_iter().filter_map(|kind| self.start_at(kind));
        let times = times.chain(self.undelivered.iter().map(|(_, _, since)| *since + self.patience));
        times.filter(|time| *time > now).min()
    }

    /// Every due job that is more urgent than this is claimed, as far as is known.
    pub(crate) fn known_to(&self, now: Instant) -> Order {
        if !self.is_known {
            return NOTHING;
        }
        let levels = self.levels.iter();
        let known = levels.filter_map(|(key, level)| level.known_to.map(|known| known.order(key.priority)));
        let undelivered = self.undelivered.iter().filter(|(_, _, since)| now < *since + self.patience);
        let undelivered = undelivered.map(|(_, first, _)| before(*first));
        // A settlement that takes long delays only its own jobs.
        let free_soon = self.freeing.iter().filter(|(_, since, _)| now < *since + self.patience);
        let free_soon = free_soon.flat_map(|(_, _, jobs)| jobs).chain(&self.freed_meanwhile);
        let free_soon = free_soon.map(|job| before(job.order()));
        known.chain(undelivered).chain(free_soon).fold(self.limited_to(), Order::min)
    }

    /// The next pick, of at most `count` jobs that are more urgent than `before`.
    pub(crate) fn send(&mut self, now: Instant, count: usize, before: Order) -> Request {
        let kind = self.urgent_kind(before).or_else(|| self.start_kind(now)).unwrap_or(Kind::Plain);
        let from_start = self.may_start(kind, now);
        let gaps = self.gaps.take(&self.tasks, self.levels.keys());
        // What the last pick of this kind did not read because of its limit, if this one goes further.
        let limit = self.limited_to[kind as usize];
        let was_limited = |key: &LevelKey| limit < before && key.priority >= limit.0;
        let (mut levels, mut uses_position) = (Vec::new(), false);
        for (key, level) in &mut self.levels {
            let is_asked = from_start || level.is_asked() || was_limited(key);
            if key.kind != kind || !is_asked || key.priority > before.0 {
                continue;
            }
            level.is_wanted = false;
            let after = if from_start { Position::START } else { level.position };
            uses_position |= after != Position::START;
            levels.push(LevelRequest { key: key.clone(), after, limit: count });
        }
        self.pick.on_sent();
        self.is_hinted = false;
        self.starts[kind as usize].on_sent(from_start, uses_position);
        let count = share(&mut levels, count);
        Request { kind, levels, gaps, count, before, from_start }
    }

    /// The kind that can bring the most urgent job, if one is asked for.
    fn urgent_kind(&self, before: Order) -> Option<Kind> {
        let asked = self.levels.iter().filter(|(key, level)| level.is_asked() && key.priority <= before.0);
        let next = |(key, level): (&LevelKey, &Level)| {
            (level.known_to.unwrap_or(Position::START).order(key.priority), key.kind)
        };
        asked.map(next).min().map(|(_, kind)| kind)
    }

    /// The kind of which a pick from the start is owed, and due now.
    fn start_kind(&self, now: Instant) -> Option<Kind> {
        let kinds = [Kind::Plain, Kind::Flagged];
        kinds.into_iter().find(|kind| self.starts[*kind as usize].is_owed && self.may_start(*kind, now))
    }

    /// Whether a pick of this kind may begin at the start.
    fn may_start(&self, kind: Kind, now: Instant) -> bool {
        let has_levels = self.levels.keys().any(|key| key.kind == kind);
        has_levels && self.start_at(kind).is_none_or(|time| time <= now)
    }

    /// When a pick from the start of this kind may be sent. None: at once.
    fn start_at(&self, kind: Kind) -> Option<Instant> {
        self.starts[kind as usize].not_before(kind, self.is_full, self.always_pauses)
    }
}

#[cfg(test)]
mod tests;
