//! The actor: the task that has all outcomes until they are written.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};

use super::super::Shared;
use super::pending::{Delays, Entry, Fate, Pending};
use super::{Report, report, write};
use crate::Result;

/// Statements for several outcomes that are under way at a time.
pub(in super::super) const BATCHES: usize = 2;

/// Statements for a single outcome that are under way at a time.
pub(in super::super) const APART: usize = 2;

/// A statement that was answered, or failed.
struct Written {
    entries: Vec<Entry>,
    is_apart: bool,
    /// What became of the jobs whose claims were not lost.
    fates: Result<HashMap<i64, Fate>>,
}

pub(super) struct Actor {
    shared: Arc<Shared>,
    pending: Pending,
    /// From the owner. Closed when it has ended.
    entries: mpsc::UnboundedReceiver<Vec<Entry>>,
    reports: mpsc::UnboundedSender<Report>,
    writes: JoinSet<Written>,
    batches: usize,
    apart: usize,
    /// As last reported.
    stuck: usize,
}

impl Actor {
    pub(super) fn new(
        shared: Arc<Shared>,
        delays: Delays,
        entries: mpsc::UnboundedReceiver<Vec<Entry>>,
        reports: mpsc::UnboundedSender<Report>,
    ) -> Actor {
        let (pending, writes) = (Pending::new(delays, shared.worker_id.clone()), JoinSet::new());
        Actor { shared, pending, entries, reports, writes, batches: 0, apart: 0, stuck: 0 }
    }

    /// Writes outcomes until the owner has ended, or until the worker leaves its locks to the recovery. Then a statement may wait for another transaction for ever, so those under way are not awaited.
    pub(super) async fn run(mut self) {
        let (mut is_open, mut is_hurrying) = (true, false);
        loop {
            let now = Instant::now();
            self.send(now);
            self.report_stuck();
            // Without an owner there are no heartbeats. What can't be written now is left to the recovery.
            if !is_open && self.writes.is_empty() {
                return;
            }
            let timer = self.pending.next_timer(now);
            tokio::select! {
                entries = self.entries.recv(), if is_open => match entries {
                    Some(entries) => self.pending.add(Instant::now(), entries),
                    None => {
                        is_open = false;
                        self.pending.hurry(Instant::now());
                    }
                },
                Some(written) = self.writes.join_next() => self.on_written(written),
                () = sleep_until(timer) => {}
                () = self.shared.stop.cancelled(), if !is_hurrying => {
                    is_hurrying = true;
                    self.pending.hurry(Instant::now());
                }
                () = self.shared.leave.cancelled() => {
                    self.writes.detach_all();
                    return;
                }
            }
        }
    }

    fn send(&mut self, now: Instant) {
        while self.batches < BATCHES {
            let Some(entries) = self.pending.next_batch(now) else { break };
            self.batches += 1;
            self.spawn(entries, false);
        }
        while self.apart < APART {
            let Some(entry) = self.pending.next_apart(now) else { break };
            self.apart += 1;
            self.spawn(vec![entry], true);
        }
    }

    fn spawn(&mut self, entries: Vec<Entry>, is_apart: bool) {
        let shared = self.shared.clone();
        self.writes.spawn(async move {
            let fates = write::write(&shared, &entries, is_apart).await;
            Written { entries, is_apart, fates }
        });
    }

    fn on_written(&mut self, written: Result<Written, JoinError>) {
        // Nothing in there panics. If it does, nobody knows what was written, and the recovery frees the jobs.
        let Ok(Written { entries, is_apart, fates }) = written.inspect_err(|error| {
            tracing::error!(%error, "a release panicked");
        }) else {
            return;
        };
        match is_apart {
            true => self.apart -= 1,
            false => self.batches -= 1,
        }
        let now = Instant::now();
        match fates {
            Ok(fates) => {
                let fate_of = |id| fates.get(&id).copied().unwrap_or(Fate::Absent);
                let done = self.pending.on_answer(now, entries, fate_of);
                self.report(done);
            }
            Err(error) => self.pending.on_error(now, entries, &error),
        }
    }

    /// Says how many outcomes are stuck, if that has changed. Those under way apart are.
    fn report_stuck(&mut self) {
        let stuck = self.pending.stuck() + self.apart;
        if stuck != self.stuck {
            self.stuck = stuck;
            let _ = self.reports.send(Report { stuck, ..Report::default() });
        }
    }

    fn report(&mut self, done: Vec<(Entry, Fate)>) {
        if done.is_empty() {
            return;
        }
        let mut report = Report { stuck: self.stuck, ..Report::default() };
        let (mut written, mut lost) = (Vec::with_capacity(done.len()), Vec::new());
        for (mut entry, fate) in done {
            report.add(&entry.finished);
            match fate {
                Fate::FailedPermanently => {
                    entry.finished.give_up();
                    written.push(entry.finished);
                }
                Fate::Absent if !entry.is_unknown => lost.push(entry.finished),
                _ => written.push(entry.finished),
            }
        }
        report::tell_lost(&self.shared, lost);
        report::tell_all(&self.shared, written);
        // Without an owner nobody needs it.
        let _ = self.reports.send(report);
    }
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
