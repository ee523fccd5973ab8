//! LISTEN: receives notifications of new jobs, and of migrations of the schema.
//!
//! The listener reconnects forever. After each connection it requests a claim and a check of the schema, since it may
//! have missed notifications. Anybody can send notifications, so they are only hints: they cause queries, but the
//! worker does not trust their content.
//!
//! Channels belong to the database, not to a schema. Our functions name their schema in the payload, so notifications
//! of other schemas cost nothing. Graphile's own functions name none. As long as our schema has our functions, a
//! notification without a schema is probably from another one. Such notifications are handled together, a few times per
//! second.

mod unanswered;

use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};
use tokio_postgres::{AsyncMessage, Notification};

use super::Shared;
use super::backoff::Backoff;
use super::fleet::Answer;
use super::notice::{AddedJob, Announced, announced_jobs, may_break_us};
use super::wake::Wake;
use crate::Error;
use crate::db::{ConnectionSettings, connect};
use crate::event::WorkerEvent;
use unanswered::Waiting;

/// After notifications without a schema were handled, how long the next ones wait for more.
const TOGETHER: Duration = Duration::from_millis(200);

/// Where the listener reports what it received.
#[derive(Clone)]
pub(super) struct WakeSenders {
    pub(super) wakes: mpsc::Sender<Wake>,
    /// Requests a poll.
    pub(super) poll: Arc<Notify>,
}

/// Keeps a LISTEN alive until the worker stops.
pub(super) async fn listen(shared: Arc<Shared>, settings: ConnectionSettings, senders: WakeSenders) {
    let (later, waiting) = mpsc::channel(unanswered::MOST);
    // A poll reads jobs that are due within its interval, and may have been sent just before the job was added.
    let soon = shared.poll_interval * 2;
    let check = unanswered::check_later(shared.clone(), waiting, soon, senders.clone());
    tokio::join!(check, listen_forever(shared, settings, senders, later));
}

async fn listen_forever(
    shared: Arc<Shared>,
    settings: ConnectionSettings,
    senders: WakeSenders,
    later: mpsc::Sender<Waiting>,
) {
    let mut backoff = Backoff::default();
    loop {
        let failures = backoff.tries();
        shared.events.send(|| WorkerEvent::ListenConnecting { failures });
        let lost = tokio::select! {
            lost = listen_once(&shared, &settings, &senders, &later, &mut backoff) => lost,
            () = shared.stop.cancelled() => return,
        };
        tracing::warn!(error = %lost, "the connection for LISTEN was lost; jobs are found by polling until it is restored");
        shared.events.send(|| WorkerEvent::ListenFailed { error: lost.to_string().into() });
        tokio::select! {
            () = tokio::time::sleep(backoff.next()) => {}
            () = shared.stop.cancelled() => return,
        }
    }
}

/// Listens until the connection is lost, and returns the reason.
async fn listen_once(
    shared: &Shared,
    settings: &ConnectionSettings,
    senders: &WakeSenders,
    later: &mpsc::Sender<Waiting>,
    backoff: &mut Backoff,
) -> Error {
    let failed = |error| Error::database("listening for jobs", error);
    let (client, mut connection) = match connect::open(settings).await {
        Ok(connected) => connected,
        Err(failure) => return failure.into_error(Some("listening for jobs")),
    };
    let listen = client.batch_execute(r#"listen "jobs:insert"; listen "worker:migrate""#);
    tokio::pin!(listen);
    let (mut is_listening, mut unnamed) = (false, Unnamed::default());
    loop {
        let message = tokio::select! {
            listened = &mut listen, if !is_listening => {
                if let Err(error) = listened {
                    return failed(error);
                }
                is_listening = true;
                if backoff.tries() > 0 {
                    // The start has checked it. Since then, a notification may have been missed.
                    check_schema(shared, senders);
                }
                *backoff = Backoff::default();
                shared.events.send(|| WorkerEvent::ListenStarted);
                // Jobs that were added before this connection were not announced to it. The receiver lives as long as
                // the worker.
                let _ = senders.wakes.send(Wake::Hint).await;
                continue;
            }
            message = poll_fn(|cx| connection.poll_message(cx)) => message,
            () = tokio::time::sleep(unnamed.pause(Instant::now())), if unnamed.count > 0 => {
                announce(shared, unnamed.answer(Instant::now()), senders);
                continue;
            }
        };
        match message {
            Some(Ok(AsyncMessage::Notification(notice))) => {
                receive(shared, &notice, senders, later, &mut unnamed)
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => return failed(error),
            None => return Error::unavailable("listening for jobs: the server closed the connection"),
        }
    }
}

fn receive(
    shared: &Shared,
    notice: &Notification,
    senders: &WakeSenders,
    later: &mpsc::Sender<Waiting>,
    unnamed: &mut Unnamed,
) {
    match notice.channel() {
        "jobs:insert" => match announced_jobs(notice.payload(), shared.utils.schema().name()) {
            Announced::Here(count) => announce(shared, count, senders),
            Announced::Job(job) => receive_job(shared, &job, senders, later),
            Announced::Somewhere(count) => {
                let now = Instant::now();
                unnamed.count = unnamed.count.saturating_add(count);
                let is_likely_ours = !shared.functions_are_ours.load(Ordering::Relaxed);
                if is_likely_ours || unnamed.pause(now).is_zero() {
                    announce(shared, unnamed.answer(now), senders);
                }
            }
            Announced::Nothing => {}
        },
        "worker:migrate" if may_break_us(notice.payload()) => check_schema(shared, senders),
        _ => {}
    }
}

/// Asks for an added job, or leaves it to another worker of the fleet.
fn receive_job(shared: &Shared, job: &AddedJob, senders: &WakeSenders, later: &mpsc::Sender<Waiting>) {
    let fleet = shared.fleet.lock().unwrap_or_else(PoisonError::into_inner);
    let answer = fleet.answer(&shared.task_identifiers, job.id, &job.task_identifier);
    drop(fleet);
    match answer {
        Answer::Now => announce(shared, 1, senders),
        Answer::After(pause) => {
            let since = Instant::now();
            let waiting = Waiting { id: job.id, since, check_at: since + pause };
            if later.try_send(waiting).is_err() {
                announce(shared, 1, senders);
            }
        }
        Answer::Never => {}
    }
}

fn check_schema(shared: &Shared, senders: &WakeSenders) {
    shared.check_schema.store(true, Ordering::Relaxed);
    senders.poll.notify_one();
}

fn announce(shared: &Shared, count: usize, senders: &WakeSenders) {
    shared.announced.fetch_add(count, Ordering::Relaxed);
    // If the channel is full, the worker wakes up anyway.
    let _ = senders.wakes.try_send(Wake::Announced);
}

/// Jobs that were announced without the name of their schema.
#[derive(Default)]
struct Unnamed {
    /// Jobs that were announced and did not cause a wake-up yet.
    count: usize,
    answered_at: Option<Instant>,
}

impl Unnamed {
    /// How long to wait before the next wake-up for them.
    fn pause(&self, now: Instant) -> Duration {
        let since = self.answered_at.map(|time| now.saturating_duration_since(time));
        since.map_or(Duration::ZERO, |since| TOGETHER.saturating_sub(since))
    }

    /// One wake-up is sent for all of them. Returns their number.
    fn answer(&mut self, now: Instant) -> usize {
        self.answered_at = Some(now);
        std::mem::take(&mut self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_notification_is_handled_at_once_and_later_ones_together() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut unnamed = Unnamed { count: 2, answered_at: None };
        assert_eq!((unnamed.pause(start), unnamed.answer(start)), (Duration::ZERO, 2));
        unnamed.count += 3;
        assert_eq!(unnamed.pause(at(50)), TOGETHER - Duration::from_millis(50));
        assert_eq!((unnamed.pause(at(200)), unnamed.answer(at(200))), (Duration::ZERO, 3));
        assert_eq!(unnamed.count, 0);
    }
}
