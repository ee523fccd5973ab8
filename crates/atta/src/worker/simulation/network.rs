//! Between workers and the server: statements that arrive, and those that do not.

use std::time::Duration;

use super::super::claim::held::LONGEST_SILENCE;
use super::super::release::Fate;
use super::model::WorkerNumber;
use super::statement::{Answer, Effect, Sent, Statement, Trouble};
use super::world::{Happening, MS, Step, World};
use crate::recovery::OwnHeartbeats;

/// What becomes of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Good,
    /// The connection is lost before it takes effect, or after.
    LostBefore,
    LostAfter,
    /// It takes effect after the worker knows that the connection is lost.
    Late,
}

impl World {
    pub(super) fn send(&mut self, worker: WorkerNumber, statement: Statement) {
        let now = self.agenda.instant();
        let Some(it) = self.workers.get(&worker) else { return };
        let effect = statement.effect(now, it.continuity.own_heartbeats(now), it.has_polled);
        self.last_number += 1;
        let number = self.last_number;
        self.statistics.on_sent(statement.name());
        let way = self.choose_way();
        let is_heartbeat = matches!(statement, Statement::Heartbeat);
        let lane = match &statement {
            Statement::Commit { lane, .. } => Some(*lane),
            _ => None,
        };
        let is_cut = !self.can_reach(worker);
        let trouble = if is_cut {
            let is_known = self.is_up() && lane.is_some();
            Some(if is_known { Trouble::Closed } else { Trouble::Refused })
        } else {
            (way != Way::Good).then_some(Trouble::Closed)
        };
        let sent = Sent { statement, sent_at: now, trouble, answer: None, is_dropped: false };
        self.statements.insert((worker, number), sent);
        let arrives = self.soon();
        if is_cut {
            let pause = if self.is_up() { self.random.losses.u32(1..10_000) } else { 1 };
            self.plan(self.now() + MS * pause, worker, Step::Reply(number));
            self.disturb(worker, self.now() + MS * pause, false);
            return;
        }
        if way != Way::Good {
            self.note(|world| {
                let name = world.statements[&(worker, number)].statement.name();
                format!("worker {worker}: the connection of its {name} will be lost: {way:?}")
            });
            self.disturb(worker, arrives, is_heartbeat);
        }
        let late = MS * self.random.losses.u32(0..5000);
        let server = self.server;
        let arrival = |effect| Happening::Arrive { worker, number, server, effect };
        match way {
            Way::Good | Way::LostAfter => self.agenda.add(arrives, arrival(effect)),
            Way::LostBefore => {
                self.plan(arrives, worker, Step::Reply(number));
                if let Some(lane) = lane {
                    self.agenda.add(arrives, Happening::EndTransaction(worker, lane));
                }
            }
            Way::Late => {
                self.plan(arrives, worker, Step::Reply(number));
                self.agenda.add(arrives + late, arrival(effect));
            }
        }
    }

    fn choose_way(&mut self) -> Way {
        let (roll, way) = (self.random.losses.f64(), self.random.losses.bool());
        if roll < self.setup.lost {
            if way { Way::LostBefore } else { Way::LostAfter }
        } else if roll < self.setup.lost + self.setup.late {
            Way::Late
        } else {
            Way::Good
        }
    }

    /// Notes that something goes wrong for a worker until then.
    pub(super) fn disturb(&mut self, worker: WorkerNumber, until: Duration, is_alone: bool) {
        self.disturbed_at = self.disturbed_at.max(until);
        if let Some(worker) = self.workers.get_mut(&worker) {
            match is_alone {
                true => worker.single_out(until),
                false => worker.disturb(until),
            }
        }
    }

    /// A statement reaches the server, and takes effect.
    pub(super) fn arrive(&mut self, worker: WorkerNumber, number: u64, effect: Effect) -> Result<(), String> {
        let key = (worker, number);
        if self.statements.get(&key).is_some_and(|sent| sent.is_dropped) {
            return Ok(());
        }
        let lane = match &effect {
            Effect::Pick { lane, .. } => Some(*lane),
            _ => None,
        };
        let answer = self.execute(worker, effect)?;
        let replied = self.soon();
        let has_trouble = self.statements.get(&key).is_none_or(|sent| sent.trouble.is_some());
        if let Some(lane) = lane
            && self.database.is_held((worker, lane))
        {
            // If the connection is gone, the server notices that sooner or later.
            let silence = match has_trouble {
                true => MS * self.random.losses.u32(0..3000),
                false => LONGEST_SILENCE,
            };
            self.agenda.add(self.now() + silence, Happening::EndTransaction(worker, lane));
        }
        if let Some(sent) = self.statements.get_mut(&key) {
            sent.answer = Some(answer);
            self.plan(replied, worker, Step::Reply(number));
        }
        Ok(())
    }

    fn execute(&mut self, worker: WorkerNumber, effect: Effect) -> Result<Answer, String> {
        let now = self.now();
        let (database, forbidden) = (&mut self.database, &self.forbidden);
        let answer = match effect {
            Effect::Heartbeat => {
                let was_registered = database.heartbeat(now, worker);
                let (started_at, now) = (database.started_at, database.clock(now));
                self.note(|_| format!("worker {worker} sends a heartbeat"));
                return Ok(Answer::Heartbeat { was_registered, started_at, now });
            }
            Effect::Poll { continuous, for_jobs } => {
                Answer::Polled(database.poll(now, worker, continuous, for_jobs, forbidden))
            }
            Effect::Recover(own) => return self.recover(worker, own),
            Effect::Cron(statement) => return self.execute_cron(worker, &statement).map(Answer::Cron),
            Effect::FreeOrphans => {
                let freed = database.recover(now, true, 0.5).len();
                self.note(|_| format!("worker {worker} frees orphans: {freed}"));
                Answer::Recovered(freed > 0)
            }
            Effect::Claim(wanted) if database.refuses_claim(now, &wanted, forbidden) => Answer::Refused,
            Effect::Claim(wanted) => {
                let (jobs, level) = database.claim(now, worker, &wanted, forbidden);
                if jobs.is_empty() {
                    self.statistics.on_found_nothing("durable claim");
                }
                self.note(|_| {
                    format!("worker {worker} claims {:?}", jobs.iter().map(|job| job.id).collect::<Vec<_>>())
                });
                Answer::Claimed(jobs, level)
            }
            Effect::ClaimOneByOne(wanted) => {
                let (jobs, refused) = database.claim_one_by_one(now, worker, &wanted, forbidden);
                self.note(|_| {
                    let ids = |jobs: &[crate::Job]| jobs.iter().map(|job| job.id).collect::<Vec<_>>();
                    let (jobs, refused) = (ids(&jobs), ids(&refused));
                    format!("worker {worker} claims {jobs:?} one by one, refused {refused:?}")
                });
                Answer::ClaimedOneByOne(jobs, refused)
            }
            Effect::Pick { lane, request } => {
                let (jobs, seen) = database.pick(now, (worker, lane), &request, forbidden);
                if jobs.is_empty() {
                    self.statistics.on_found_nothing("pick");
                }
                self.note(|_| {
                    let ids: Vec<i64> = jobs.iter().map(|job| job.id).collect();
                    format!("worker {worker} picks {ids:?} on lane {lane}")
                });
                Answer::Picked(jobs, seen)
            }
            Effect::Commit { lane, finished, running } => {
                let holder = (worker, lane);
                if !database.is_held(holder) {
                    return Ok(Answer::Committed(None));
                }
                if database.refuses_commit(&finished, &running) {
                    database.roll_back(now, holder);
                    return Ok(Answer::Refused);
                }
                let times = database.promote_held(now, holder, &running);
                database.commit(now, holder, &finished)?;
                self.note(|_| {
                    let ids: Vec<i64> = finished.iter().map(|one| one.job.id).collect();
                    format!("worker {worker} commits lane {lane}: {ids:?}, promotes {running:?}")
                });
                Answer::Committed(Some(times))
            }
            Effect::Promote(jobs) if database.refuses_promotion(worker, &jobs) => Answer::Refused,
            Effect::Promote(jobs) => {
                let claimed = database.promote_untouched(now, worker, &jobs);
                self.note(|_| {
                    let mut ours: Vec<i64> = claimed.ours.keys().copied().collect();
                    ours.sort_unstable();
                    format!("worker {worker} claims again {ours:?}, blocked {}", claimed.blocked.len())
                });
                Answer::Promoted(claimed)
            }
            Effect::Search(known) => {
                let claims = database.find_unknown(worker, &known);
                self.note(|_| format!("worker {worker} searches, and finds {:?}", claims.ids));
                Answer::Found(claims)
            }
            Effect::ReturnUnknown(claims) => {
                let fates = database.return_unknown(now, worker, &claims);
                let returned = fates.values().filter(|fate| **fate == Fate::Written).count();
                self.note(|_| format!("worker {worker} returns {returned} of {:?}", claims.ids));
                Answer::Searched(returned, fates.len() - returned)
            }
            Effect::Renew(ids) => Answer::Renewed(database.renew(now, worker, &ids)),
            Effect::Release(entries) if database.refuses_release(worker, &entries) => Answer::Refused,
            Effect::Release(entries) => {
                let fates = database.release(now, worker, &entries)?;
                self.note(|_| {
                    let fate = |id: i64| fates.get(&id);
                    let of = |it: &super::super::release::Entry| {
                        (it.finished.job.id, it.kind(), fate(it.finished.job.id))
                    };
                    format!("worker {worker} releases {:?}", entries.iter().map(of).collect::<Vec<_>>())
                });
                Answer::Released(fates)
            }
        };
        Ok(answer)
    }

    fn recover(&mut self, worker: WorkerNumber, own: OwnHeartbeats) -> Result<Answer, String> {
        let now = self.now();
        let declared = self.database.declare_dead(now, worker, own);
        for (dead, recorded_at) in &declared {
            self.note(|_| format!("worker {worker} declares worker {dead} dead"));
            self.declared.insert(*dead, now);
            self.check_declaration(*dead, *recorded_at)?;
        }
        let random = self.random.network.f64();
        let freed = self.database.recover(now, false, random).len();
        self.database.forget_workers();
        self.note(|_| format!("worker {worker} recovers {freed} jobs"));
        Ok(Answer::Recovered(!declared.is_empty()))
    }
}
