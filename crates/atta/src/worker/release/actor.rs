//! The actor: the task that owns all outcomes until they are written.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};

use super::super::Shared;
use super::pending::{Delays, Entry, Fate, Pending};
use super::{Report, report, write};
use crate::Result;

/// How many statements that each write several outcomes may be under way at a time.
pub(in super::super) const BATCHES: usize = 2;

/// How many statements that each write a single outcome may be under way at a time.
pub(in super::super) const APART: usize = 2;

/// A statement that was answered, or failed.
struct Written {
    entries: Vec<Entry>,
    is_apart: bool,
    sent: Instant,
    /// The fates of the jobs whose claims were not lost.
    fates: Result<HashMap<i64, Fate>>,
}

pub(super) struct Actor {
    shared: Arc<Shared>,
    pending: Pending,
    /// From the driver, which closes the channel when it ends.
    entries: mpsc::UnboundedReceiver<Vec<Entry>>,
    reports: mpsc::UnboundedSender<Report>,
    writes: JoinSet<Written>,
    /// When each of the statements for several outcomes that are under way was sent.
    batches: Vec<Instant>,
    apart: usize,
    /// The number of stuck outcomes in the last report.
    stuck: usize,
    /// Whether the last report had a rejection.
    has_reported_refusal: bool,
}

impl Actor {
    pub(super) fn new(
        shared: Arc<Shared>,
        delays: Delays,
        entries: mpsc::UnboundedReceiver<Vec<Entry>>,
        reports: mpsc::UnboundedSender<Report>,
    ) -> Actor {
        let (pending, writes) = (Pending::new(delays, shared.worker_id.clone()), JoinSet::new());
        Actor {
            shared,
            pending,
            entries,
            reports,
            writes,
            batches: Vec::new(),
            apart: 0,
            stuck: 0,
            has_reported_refusal: false,
        }
    }

    /// Writes outcomes until the driver has ended, or until the worker leaves its locks to recovery. In the latter case
    /// it does not wait for statements that are under way, since they may wait for another transaction forever.
    pub(super) async fn run(mut self) {
        let (mut is_open, mut is_hurrying) = (true, false);
        loop {
            let now = Instant::now();
            self.send(now);
            self.report_stuck();
            // When the driver has ended, heartbeats stop soon. Outcomes that can't be written now are left to recovery.
            if !is_open && self.writes.is_empty() {
                return;
            }
            let timer = self.pending.next_timer(now, self.under_way());
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
        while self.batches.len() < BATCHES {
            let Some(entries) = self.pending.next_batch(now, self.under_way()) else { break };
            self.batches.push(now);
            self.spawn(entries, false, now);
        }
        while self.apart < APART {
            let Some(entry) = self.pending.next_apart(now) else { break };
            self.apart += 1;
            self.spawn(vec![entry], true, now);
        }
    }

    /// When the oldest statement for several outcomes that is under way was sent.
    fn under_way(&self) -> Option<Instant> {
        self.batches.iter().min().copied()
    }

    fn spawn(&mut self, entries: Vec<Entry>, is_apart: bool, sent: Instant) {
        let shared = self.shared.clone();
        self.writes.spawn(async move {
            let fates = write::write(&shared, &entries, is_apart).await;
            Written { entries, is_apart, sent, fates }
        });
    }

    fn on_written(&mut self, written: Result<Written, JoinError>) {
        // Not expected: nothing in a write panics. If it does, it is unknown what was written, and recovery frees the
        // jobs.
        let Ok(Written { entries, is_apart, sent, fates }) = written.inspect_err(|error| {
            tracing::error!(%error, "a release panicked");
        }) else {
            return;
        };
        if is_apart {
            self.apart -= 1;
        } else if let Some(index) = self.batches.iter().position(|time| *time == sent) {
            // Removes only one entry: two statements may have been sent at the same time.
            self.batches.remove(index);
        }
        let now = Instant::now();
        match fates {
            Ok(fates) => {
                let fate_of = |id| fates.get(&id).copied().unwrap_or(Fate::Absent);
                let done = self.pending.on_answer(now, entries, fate_of);
                self.report(done);
            }
            Err(error) => {
                self.shared.on_error(&error);
                self.pending.on_error(now, entries, &error);
            }
        }
    }

    /// Reports how many outcomes are stuck, if the number has changed, and whether the database rejects one for long.
    /// Outcomes that are being written alone count as stuck.
    fn report_stuck(&mut self) {
        let stuck = self.pending.stuck() + self.apart;
        let refused = self.pending.refused().cloned();
        if stuck != self.stuck || refused.is_some() != self.has_reported_refusal {
            (self.stuck, self.has_reported_refusal) = (stuck, refused.is_some());
            let _ = self.reports.send(Report { stuck, refused, ..Report::default() });
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
        report::report_lost(&self.shared, lost);
        report::report_all(&self.shared, written);
        // If the driver has ended, the report is not needed.
        let _ = self.reports.send(report);
    }
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
