//! What is sent now: claims of both kinds, searches after lost replies, polls; and how far the list is open.

use std::time::Instant;

use super::super::claim::held::Wanted;
use super::super::claim::{Claimable, KnownJobs};
use super::scan::{EVERYTHING, NOTHING};
use super::{Command, HOLDING_LANES, Planner};
use crate::event::WorkerEvent;
use crate::job::Order;

/// Durable claims that are under way at a time: one whose jobs are being decoded, one of the jobs that the claim before
/// has seen, and one of the jobs behind them. Two claims of any jobs at a time would find the same ones, and each would
/// keep jobs locked that the other one wants. One statement for even ids and one for odd ids was tried; it took a third
/// more of PostgreSQL's time.
pub(crate) const DURABLE_LANES: usize = 3;

impl Planner {
    /// Sends what is to be sent, as far as lanes are free. Call it after events.
    pub(crate) fn plan(&mut self, now: Instant) {
        if !self.releasing.is_empty() {
            self.commands.push(Command::Release(std::mem::take(&mut self.releasing)));
        }
        self.stuck_since = self.is_stuck().then(|| self.stuck_since.unwrap_or(now));
        if self.shutdown.has_left() {
            return;
        }
        // Lanes that only claim the jobs of lost batches again do not matter: these jobs are known.
        if self.lost.search(now, self.lanes == self.held.promoting()) {
            let ids = self.jobs.ids().chain(self.unreleased.ids()).chain(self.held.batches.settling_ids());
            let queues = self.jobs.queues().chain(self.unreleased.queues());
            let known = KnownJobs { ids: ids.collect(), queues: queues.collect() };
            self.lanes += 1;
            self.commands.push(Command::Search { known });
        }
        if self.lost.holds_up_claims() {
            return;
        }
        self.durable.ask_for_freed(now, self.jobs.len() > self.rules.slots);
        self.refresh_tasks();
        self.send_durable(now);
        self.send_picks(now);
        if !self.has_free_slot() {
            // No pick can be sent now. One goes first as soon as a slot is free.
            self.held.scan.forget_if_hinted();
        }
        self.open_list(now);
        let is_asking = self.durable.has_more() || (self.holds() && self.held.scan.is_asking());
        let is_quiet = !is_asking && self.durable.away() + self.held.away() == 0;
        if is_quiet && self.due.take_unknown() {
            self.commands.push(Command::Poll);
        }
    }

    /// Decides which tasks' jobs are held. A change makes unknown what either kind of claims may find.
    fn refresh_tasks(&mut self) {
        let holds = self.holds();
        self.tasks.note_holds(holds);
        // A durable claim that is under way keeps jobs locked that a pick would then pass by.
        if !self.tasks.has_changed() || self.durable.away() > 0 {
            return;
        }
        let held = self.tasks.split(holds);
        self.held.scan.set_tasks(&held);
        self.durable.ask();
        self.durable.forget(NOTHING);
    }

    fn send_durable(&mut self, now: Instant) {
        if self.is_claim_needed() && self.durable.away() == 0 {
            self.durable.ask();
            self.make_room(now);
        }
        while self.durable.away() < self.durable_lanes()
            && !self.durable.waits_for_answer(now, self.rules.patience)
        {
            let Some(wanted) = self.claimable(now) else { break };
            self.durable.on_sent(&wanted);
            self.lanes += 1;
            self.commands.push(Command::Report(WorkerEvent::ClaimStarted));
            self.commands.push(Command::ClaimDurably(wanted));
        }
    }

    /// Whether jobs that wait in the list can't start before a durable claim is answered.
    fn is_claim_needed(&self) -> bool {
        self.list.first().is_some_and(|first| first > self.durable.known_to())
    }

    /// Two claims at a time bring jobs in any order, which does not matter where many wait.
    pub(super) fn durable_lanes(&self) -> usize {
        if self.rules.local_queue.is_none() || self.rules.slots == 1 { 1 } else { DURABLE_LANES }
    }

    /// What may be claimed durably now.
    fn claimable(&self, now: Instant) -> Option<Claimable> {
        let releases_first = self.rules.slots == 1 && self.returning.is_waiting(now);
        let is_first = !self.announced.goes_first(now) && !releases_first && !self.tasks.has_changed();
        if !self.durable.asks() || !is_first || self.is_held_up() {
            return None;
        }
        // If jobs wait for the answer, only errors cause a pause.
        let is_needed = self.is_claim_needed();
        if !self.durable.pauses.are_over(now) && (!is_needed || self.durable.is_failing()) {
            return None;
        }
        let (count, before) = match self.room() {
            0 if self.durable.is_hinted() || is_needed => {
                (self.rules.slots, self.more_urgent_than_waiting()?)
            }
            0 => return None,
            room => (room, EVERYTHING),
        };
        let bytes = self.rules.claim_bytes.saturating_sub(self.list.durable_bytes());
        if bytes == 0 && before == EVERYTHING {
            return None;
        }
        let count = self.durable.fitting(count, bytes);
        let level = match before == EVERYTHING && self.refused.is_empty() {
            true => self.durable.level.request(now, count, self.durable.is_hinted()),
            false => None,
        };
        Some(Claimable {
            count,
            tasks: self.refused.without_left_out(now, self.tasks.active()),
            unqueued: self.refused.without_left_out(now, self.tasks.durable()),
            before,
            bytes,
            left_out: self.refused.left_out(now),
            one_by_one: self.refused.is_retry(now),
            has_few_queues: self.surroundings.has_few_queues,
            reads_all_flagged: self.durable.reads_all_flagged(now, &self.rules),
            looks_ahead: self.durable_lanes() > 1,
            level,
            epoch: self.durable.epoch(),
            sent_at: now,
        })
    }

    /// How many jobs may be claimed beyond those that this worker has. A local queue is filled again when a quarter of
    /// it is free: a claim of a few jobs costs almost as much as a claim of many. It is a quarter because two claims
    /// may be under way while the jobs of the last two claims start.
    fn room(&self) -> usize {
        let ahead = self.rules.ahead();
        let room = (self.rules.slots + ahead).saturating_sub(self.in_slots() + self.durable.reserved());
        let most = self.rules.slots.max(ahead / 4);
        match ahead {
            0 => room,
            _ if room < most.min(ahead / 4 + 1) => 0,
            _ => room.min(most),
        }
    }

    /// Without room, jobs are claimed only if they are more urgent than the last of those that wait.
    fn more_urgent_than_waiting(&self) -> Option<Order> {
        let has_room = self.durable.reserved() == 0 && self.jobs.len() < self.most_jobs();
        self.list.last_durable().filter(|_| has_room)
    }

    /// The largest number of jobs that this worker may have. Beside the jobs that wait for a slot, there is room for as
    /// many more urgent ones.
    fn most_jobs(&self) -> usize {
        2 * self.rules.slots + self.rules.ahead()
    }

    /// If a more urgent job may be free, and those that wait leave no room for it, the least urgent of them are
    /// returned.
    fn make_room(&mut self, now: Instant) {
        let is_full = self.durable.reserved() == 0 && self.room() == 0 && self.has_free_slot();
        if !is_full || self.is_held_up() || self.durable.is_failing() {
            return;
        }
        let surplus = (self.jobs.len() + 1).saturating_sub(self.most_jobs());
        let jobs = self.list.take_last_durable(surplus);
        let jobs = jobs.into_iter().filter(|job| self.jobs.remove(job.id).is_some()).collect();
        self.return_not_started(now, jobs, false);
    }

    fn send_picks(&mut self, now: Instant) {
        loop {
            let is_blocked = self.list.first().is_some_and(|first| first > self.held.scan.known_to(now));
            if !self.may_hold() || !self.held.has_lane(now, is_blocked) {
                return;
            }
            let before = self.hold_before();
            if !self.held.scan.may_send(now, before) {
                return;
            }
            let lane = self.held.on_sent(now);
            let request = self.held.scan.send(now, self.held.size.get(), before);
            let bytes = self.rules.claim_bytes / HOLDING_LANES;
            self.lanes += 1;
            self.commands.push(Command::Report(WorkerEvent::ClaimStarted));
            self.commands.push(Command::Hold(Wanted { lane, request, bytes }));
        }
    }

    /// Jobs that are less urgent than many that wait already can't start soon, so they are not picked.
    fn hold_before(&mut self) -> Order {
        let window = self.held.size.get().max(4 * self.rules.slots);
        let limited_to = self.held.scan.limited_to();
        if limited_to < EVERYTHING && self.list.durable_before(limited_to, window / 2) < window / 2 {
            self.held.scan.ask_beyond_limit();
        }
        self.list.durable_after(window).unwrap_or(EVERYTHING)
    }

    /// Opens the list as far as both kinds of claims are known to have brought everything. A claim that fails, takes
    /// long or can't be sent delays only its own jobs.
    fn open_list(&mut self, now: Instant) {
        let is_late =
            |sent_at: Option<Instant>| sent_at.is_some_and(|time| time + self.rules.patience <= now);
        let is_held_up = self.is_held_up();
        let durable_is_open = is_held_up || self.durable.is_failing() || is_late(self.durable.sent_at());
        let held_is_open = is_held_up
            || !self.holds()
            || self.held.is_pausing_for_errors(now)
            || is_late(self.held.pick_sent_at());
        let is_asked =
            self.durable.away() > 0 || self.announced.is_pick_awaited() || self.returning.is_waiting(now);
        let durable = if durable_is_open {
            EVERYTHING
        } else if !is_asked && self.has_free_slot() && self.is_claim_needed() {
            // Jobs wait for a claim, and none can be sent: what is claimed already may start.
            self.durable.known_to().max(self.list.durable_after(0).unwrap_or(EVERYTHING))
        } else {
            self.durable.known_to()
        };
        let durable = self.returning.open_to(now, durable);
        let held = if held_is_open { EVERYTHING } else { self.held.scan.known_to(now) };
        self.list.open_to(durable.min(held));
    }

    /// Whether a batch may be picked now: only if a slot can begin it.
    pub(super) fn may_hold(&self) -> bool {
        self.holds() && !self.is_held_up() && self.has_free_slot()
    }

    /// Whether nothing may be claimed: the worker ends, or too many jobs wait for their release or their hooks.
    fn is_held_up(&self) -> bool {
        let is_full = self.unreleased.is_full() || self.surroundings.hooks_are_full;
        self.shutdown.has_begun() || self.error.is_some() || is_full
    }

    /// Jobs that have ended and wait for the commit of their batch have no slot.
    pub(super) fn in_slots(&self) -> usize {
        self.jobs.len().saturating_sub(self.held.batches.ended_while_settling())
    }

    /// Durable jobs that only wait in the list take no slot.
    pub(super) fn has_free_slot(&self) -> bool {
        self.in_slots().saturating_sub(self.list.durable_waiting()) < self.rules.slots
    }
}
