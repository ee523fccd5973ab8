//! Runs one case: the steps of its actors in one order, one step at a time.
//!
//! A step whose statement waits for a lock of another actor stays under way: the others go on, and it ends by itself. That
//! it waits is read from the server (`pg_blocking_pids`), never guessed from the time that it takes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use testkit::DEADLINE;
use tokio::task::JoinHandle;
use tokio_postgres::{Error, SimpleQueryMessage};

use crate::actors::{Call, Isolation};
use crate::case::{Event, Group, Outcome, Part, Ran, Reported, reported};
use crate::statements::execute;
use crate::world::Lane;

#[derive(Clone, Debug)]
enum Step {
    Snapshot,
    Call(Call, bool),
    End(bool),
}

/// The state of one actor.
struct Player {
    steps: VecDeque<Step>,
    under_way: Option<UnderWay>,
    is_paused: bool,
    /// What its last claim or pick returned.
    memory: Vec<Reported>,
    /// Jobs that it has picked in the open transaction.
    held: Vec<i64>,
}

struct UnderWay {
    text: String,
    reply: JoinHandle<Result<Vec<SimpleQueryMessage>, Error>>,
    is_end: bool,
    has_waited: bool,
}

impl Part {
    fn steps(&self) -> VecDeque<Step> {
        let mut steps = VecDeque::new();
        let count = self.actor.transactions.len();
        for (number, calls) in self.actor.transactions.iter().enumerate() {
            let mut begins = true;
            if self.actor.isolation != Isolation::ReadCommitted {
                steps.push_back(Step::Snapshot);
                begins = false;
            }
            for call in calls {
                steps.push_back(Step::Call(*call, begins));
                begins = false;
            }
            steps.push_back(Step::End(self.rolls_back && number + 1 == count));
        }
        steps
    }
}

/// Runs the parts of a group; `choose` picks among the actors that can take a step.
pub(crate) async fn run(
    lane: &mut Lane,
    group: &Group,
    choose: &mut (dyn FnMut(usize, &[usize]) -> usize + Send),
) -> Ran {
    let before = lane.reset(group.world).await;
    let mut stage = Stage::new(lane, group).await;
    let mut order = Vec::new();
    loop {
        let ready = stage.ready();
        if ready.is_empty() {
            if !stage.await_any().await {
                break;
            }
            continue;
        }
        let chosen = choose(order.len(), &ready);
        stage.step(chosen).await;
        order.push((chosen, ready));
        stage.observe_all().await;
    }
    let (events, faults) = (stage.events, stage.faults);
    // A statement that never reached its gate has left it closed.
    lane.gatekeeper.client.batch_execute("select pg_advisory_unlock_all()").await.unwrap();
    let after = lane.rows().await;
    Ran { order, events, before, after, faults }
}

struct Stage<'a> {
    lane: &'a Lane,
    group: &'a Group,
    players: Vec<Player>,
    events: Vec<Event>,
    faults: Vec<String>,
}

impl<'a> Stage<'a> {
    async fn new(lane: &'a Lane, group: &'a Group) -> Stage<'a> {
        let mut players = Vec::new();
        for (number, part) in group.parts.iter().enumerate() {
            if part.is_gated {
                let close = format!("select pg_advisory_lock({})", number + 1);
                lane.gatekeeper.client.batch_execute(&close).await.unwrap();
            }
            players.push(Player {
                steps: part.steps(),
                under_way: None,
                is_paused: false,
                memory: Vec::new(),
                held: Vec::new(),
            });
        }
        Stage { lane, group, players, events: Vec::new(), faults: Vec::new() }
    }

    /// The actors that can take a step: those that are idle and have one left, and those that are paused.
    fn ready(&self) -> Vec<usize> {
        let is_ready = |player: &Player| match player.under_way {
            Some(_) => player.is_paused,
            None => !player.steps.is_empty(),
        };
        (0..self.players.len()).filter(|number| is_ready(&self.players[*number])).collect()
    }

    async fn step(&mut self, number: usize) {
        if self.players[number].is_paused {
            self.players[number].is_paused = false;
            self.open_gate(number).await;
            return;
        }
        let Some(step) = self.players[number].steps.pop_front() else { return };
        let part = &self.group.parts[number];
        let begin = match part.actor.isolation {
            Isolation::ReadCommitted => "begin isolation level read committed",
            Isolation::RepeatableRead => "begin isolation level repeatable read",
            Isolation::Serializable => "begin isolation level serializable",
        };
        let is_end = matches!(step, Step::End(_));
        let text = match step {
            Step::Snapshot => format!("{begin}; select 1 from graphile_worker._private_jobs limit 1"),
            Step::End(true) => "rollback".into(),
            Step::End(false) => "commit".into(),
            Step::Call((name, arguments), begins) => {
                let call = execute(name, &self.fill(number, arguments));
                // Only the first statement of an actor pauses.
                let is_first = part.is_gated
                    && !self
                        .events
                        .iter()
                        .any(|event| event.part == number && event.text.contains("execute "));
                let gate = match (part.is_gated, is_first) {
                    (false, _) => String::new(),
                    (true, true) => format!("set inter.gate = '{}'; ", number + 1),
                    (true, false) => "set inter.gate = ''; ".into(),
                };
                let begin = if begins { format!("{begin}; ") } else { String::new() };
                format!("{begin}{gate}{call}")
            }
        };
        if is_end {
            self.players[number].held.clear();
        }
        let client = self.lane.sessions[number].client.clone();
        let sent = text.clone();
        let reply = tokio::spawn(async move { client.simple_query(&sent).await });
        self.players[number].under_way = Some(UnderWay { text, reply, is_end, has_waited: false });
    }

    async fn open_gate(&self, number: usize) {
        let open = format!("select pg_advisory_unlock({})", number + 1);
        self.lane.gatekeeper.client.batch_execute(&open).await.unwrap();
    }

    /// Waits until each statement under way has ended, or waits for another actor.
    async fn observe_all(&mut self) {
        loop {
            let mut has_ended = false;
            for number in 0..self.players.len() {
                has_ended |= self.observe(number).await;
            }
            // One that ended may have let another one go on that was observed before.
            if !has_ended {
                return;
            }
        }
    }

    /// Returns whether a statement has ended.
    async fn observe(&mut self, number: usize) -> bool {
        let start = Instant::now();
        loop {
            let player = &mut self.players[number];
            let Some(under_way) = &mut player.under_way else { return false };
            if player.is_paused {
                return false;
            }
            if let Ok(reply) = tokio::time::timeout(Duration::from_millis(2), &mut under_way.reply).await {
                self.end(number, reply.unwrap()).await;
                return true;
            }
            let pid = self.lane.sessions[number].pid;
            let blockers: Vec<i32> =
                self.lane.observer.query_one("select pg_blocking_pids($1)", &[&pid]).await.unwrap().get(0);
            if blockers.contains(&self.lane.gatekeeper.pid) {
                self.players[number].is_paused = true;
                let text =
                    self.players[number].under_way.as_ref().map_or(String::new(), |it| it.text.clone());
                self.events.push(Event { part: number, text, outcome: Outcome::Paused });
                return false;
            }
            let others: Vec<usize> = (0..self.group.parts.len())
                .filter(|other| *other != number && blockers.contains(&self.lane.sessions[*other].pid))
                .collect();
            if !others.is_empty() {
                self.note_wait(number, others);
                return false;
            }
            assert!(start.elapsed() < DEADLINE, "a statement neither ended nor waited: {:?}", self.events);
        }
    }

    fn note_wait(&mut self, number: usize, others: Vec<usize>) {
        let Some(under_way) = &mut self.players[number].under_way else { return };
        if !under_way.has_waited {
            under_way.has_waited = true;
            let text = under_way.text.clone();
            self.events.push(Event { part: number, text, outcome: Outcome::Waits(others) });
        }
    }

    /// All actors wait: for each other, until the server ends one of them. Returns false if none is under way.
    async fn await_any(&mut self) -> bool {
        let start = Instant::now();
        loop {
            let Some(number) = (0..self.players.len()).find(|number| {
                self.players[*number].under_way.as_ref().is_some_and(|it| it.reply.is_finished())
            }) else {
                if self.players.iter().all(|player| player.under_way.is_none()) {
                    return false;
                }
                assert!(start.elapsed() < DEADLINE, "the actors wait forever: {:?}", self.events);
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            };
            self.observe(number).await;
            self.observe_all().await;
            return true;
        }
    }

    async fn end(&mut self, number: usize, reply: Result<Vec<SimpleQueryMessage>, Error>) {
        let Some(under_way) = self.players[number].under_way.take() else { return };
        let outcome = match reply {
            Ok(messages) => Outcome::Rows(messages.iter().filter_map(reported).collect()),
            Err(error) => {
                let code = error.code().map_or("none", |code| code.code()).to_owned();
                let message = error.as_db_error().map_or(error.to_string(), |it| it.message().to_owned());
                self.lane.sessions[number].client.batch_execute("rollback").await.unwrap();
                self.players[number].steps.clear();
                self.players[number].held.clear();
                Outcome::Failed(code, message)
            }
        };
        if let (Outcome::Rows(rows), false) = (&outcome, under_way.is_end) {
            self.remember(number, &under_way.text, rows);
        }
        self.events.push(Event { part: number, text: under_way.text, outcome });
    }

    fn remember(&mut self, number: usize, text: &str, rows: &[Reported]) {
        // These hold the rows until their transaction ends.
        let is_pick = text.contains("execute pick_") || text.contains("execute find_claimable");
        if !is_pick && !text.contains("execute claim_") && !text.contains("execute find_unknown") {
            return;
        }
        self.players[number].memory = rows.to_vec();
        if !is_pick {
            return;
        }
        let ids: Vec<i64> = rows.iter().filter_map(|row| row.id).collect();
        for (other, player) in self.players.iter().enumerate() {
            for id in ids.iter().filter(|id| other != number && player.held.contains(id)) {
                self.faults.push(format!("job {id} is held by two actors at a time"));
            }
        }
        self.players[number].held = ids;
    }

    /// Fills the placeholders of arguments: see `actors.rs`.
    fn fill(&self, number: usize, arguments: &str) -> String {
        let memory = &self.players[number].memory;
        let list = |of: &dyn Fn(&Reported) -> String| {
            format!("{{{}}}", memory.iter().map(of).collect::<Vec<_>>().join(","))
        };
        let value = |row: &Reported, name: &str| {
            row.values.get(name).map_or("null".to_owned(), |value| format!("\"{value}\""))
        };
        let time = &self.lane.claimed_at;
        arguments
            .replace("{ids}", &list(&|row| row.id.map_or("null".into(), |id| id.to_string())))
            .replace("{times}", &list(&|row| value(row, "locked_at")))
            .replace("{queues}", &list(&|row| value(row, "job_queue_id")))
            .replace("{id}", &first(memory, "id"))
            .replace("{queue}", &first(memory, "queue_id"))
            .replace("{places}", &list(&|row| value(row, "ctid")))
            .replace("{errors}", &list(&|_| "no".into()))
            .replace("{nulls}", &list(&|_| "null".into()))
            .replace("{zeros}", &list(&|_| "0".into()))
            .replace("{falses}", &list(&|_| "f".into()))
            .replace("{t-1m}", &shifted(time, 1))
            .replace("{t-2h}", &shifted(time, 120))
            .replace("{t}", time)
    }
}

/// A value of the first row, or null.
fn first(rows: &[Reported], name: &str) -> String {
    rows.first().and_then(|row| row.values.get(name)).cloned().unwrap_or_else(|| "null".into())
}

fn shifted(time: &str, minutes: i64) -> String {
    let time = chrono::DateTime::parse_from_str(time, "%Y-%m-%d %H:%M:%S%.f%#z").unwrap();
    (time - chrono::TimeDelta::minutes(minutes)).format("%Y-%m-%d %H:%M:%S+00").to_string()
}
