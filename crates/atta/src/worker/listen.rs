//! LISTEN: hears of new jobs, and that the schema may have been migrated.
//!
//! The listener reconnects for ever. It asks for a claim and a check of the schema after each connection, since it may have
//! missed notifications. Notifications are hints from anybody: they cost queries, and nothing is believed because of one.
//!
//! Channels belong to the database, not to a schema. Our functions name their schema in the payload, so notifications of other
//! schemas cost nothing. Graphile's own functions name none. As long as our schema has our functions, such a notification is
//! likely to be of another schema: then they are answered together, a few times per second.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};
use tokio_postgres::{AsyncMessage, Notification};

use super::Shared;
use super::backoff::Backoff;
use super::notice::{Announced, announced_jobs, may_break_us};
use super::wake::Wake;
use crate::Error;
use crate::db::{ConnectionSettings, connect};
use crate::event::WorkerEvent;

/// How long notifications that name no schema wait for others, after one was answered.
const TOGETHER: Duration = Duration::from_millis(200);

/// Where the listener reports what it heard.
#[derive(Clone)]
pub(super) struct Ears {
    pub(super) wakes: mpsc::Sender<Wake>,
    /// Asks for a poll.
    pub(super) poll: Arc<Notify>,
}

/// Keeps a LISTEN alive until the worker stops.
pub(super) async fn listen(shared: Arc<Shared>, settings: ConnectionSettings, ears: Ears) {
    let mut backoff = Backoff::default();
    loop {
        let failures = backoff.tries();
        shared.events.send(|| WorkerEvent::ListenConnecting { failures });
        let lost = tokio::select! {
            lost = listen_once(&shared, &settings, &ears, &mut backoff) => lost,
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

/// Listens until the connection is lost, and returns why it was.
async fn listen_once(
    shared: &Shared,
    settings: &ConnectionSettings,
    ears: &Ears,
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
                    check_schema(shared, ears);
                }
                *backoff = Backoff::default();
                shared.events.send(|| WorkerEvent::ListenStarted);
                // What was announced before was not announced to us. The receiver lives as long as the worker does.
                let _ = ears.wakes.send(Wake::Hint).await;
                continue;
            }
            message = poll_fn(|cx| connection.poll_message(cx)) => message,
            () = tokio::time::sleep(unnamed.pause(Instant::now())), if unnamed.count > 0 => {
                announce(shared, unnamed.answer(Instant::now()), ears);
                continue;
            }
        };
        match message {
            Some(Ok(AsyncMessage::Notification(notice))) => hear(shared, &notice, ears, &mut unnamed),
            Some(Ok(_)) => {}
            Some(Err(error)) => return failed(error),
            None => return Error::unavailable("listening for jobs: the server closed the connection"),
        }
    }
}

fn hear(shared: &Shared, notice: &Notification, ears: &Ears, unnamed: &mut Unnamed) {
    match notice.channel() {
        "jobs:insert" => match announced_jobs(notice.payload(), shared.utils.schema().name()) {
            Announced::Here(count) => announce(shared, count, ears),
            Announced::Somewhere(count) => {
                let now = Instant::now();
                unnamed.count = unnamed.count.saturating_add(count);
                let is_likely_ours = !shared.functions_are_ours.load(Ordering::Relaxed);
                if is_likely_ours || unnamed.pause(now).is_zero() {
                    announce(shared, unnamed.answer(now), ears);
                }
            }
            Announced::Nothing => {}
        },
        "worker:migrate" if may_break_us(notice.payload()) => check_schema(shared, ears),
        _ => {}
    }
}

fn check_schema(shared: &Shared, ears: &Ears) {
    shared.check_schema.store(true, Ordering::Relaxed);
    ears.poll.notify_one();
}

fn announce(shared: &Shared, count: usize, ears: &Ears) {
    shared.announced.fetch_add(count, Ordering::Relaxed);
    // A full channel wakes the worker just as well.
    let _ = ears.wakes.try_send(Wake::Announced);
}

/// Jobs that were announced without the name of their schema.
#[derive(Default)]
struct Unnamed {
    /// Those that are not answered yet.
    count: usize,
    answered_at: Option<Instant>,
}

impl Unnamed {
    /// How long they wait for others.
    fn pause(&self, now: Instant) -> Duration {
        let since = self.answered_at.map(|time| now.saturating_duration_since(time));
        since.map_or(Duration::ZERO, |since| TOGETHER.saturating_sub(since))
    }

    /// All of them are answered by one wake-up. Returns how many they are.
    fn answer(&mut self, now: Instant) -> usize {
        self.answered_at = Some(now);
        std::mem::take(&mut self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_answered_at_once_and_those_that_follow_together() {
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
