//! The start and the end of a worker, as events and hooks report them; and a listener that is too slow.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use atta::{HookFuture, Hooks, JobSpec, Stream, Worker, WorkerEvent, WorkerOptions};
use futures_util::StreamExt;
use testkit::Database;
use tokio::sync::Notify;

use super::support::{Running, options};

#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn note(&self, text: String) -> HookFuture<'_> {
        Box::pin(async move { self.0.lock().unwrap().push(text) })
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Hooks for Notes {
    fn on_start<'a>(&'a self, worker_id: &'a str) -> HookFuture<'a> {
        self.note(format!("start {worker_id}"))
    }

    fn on_shutdown<'a>(&'a self, worker_id: &'a str, reason: &'a str) -> HookFuture<'a> {
        self.note(format!("shutdown {worker_id}: {reason}"))
    }

    fn on_stop<'a>(&'a self, worker_id: &'a str, error: Option<&'a str>) -> HookFuture<'a> {
        self.note(format!("stop {worker_id}: {error:?}"))
    }

    fn before_run<'a>(&'a self, job: &'a atta::Job) -> HookFuture<'a> {
        self.note(format!("run {}", job.task_identifier()))
    }
}

fn noted(options: WorkerOptions, notes: &Notes) -> WorkerOptions {
    options.define_raw_job("a", |_| async {}).add_hooks(notes.clone())
}

#[tokio::test]
async fn hooks_are_called_at_the_start_before_the_first_job_and_at_the_end_after_the_last() {
    let db = Database::migrated().await;
    let notes = Notes::default();
    let worker = noted(options(&db), &notes).init().await.unwrap();
    let (id, utils) = (worker.id().to_owned(), worker.create_utils());
    utils.add_raw_job("a", 1, JobSpec::default()).await.unwrap();
    let running = Running::with(worker);
    super::support::wait_until_empty(&utils).await;
    running.handle.request_shutdown_with_reason("the test is over");
    running.join().await.unwrap();
    let wanted = [
        format!("start {id}"),
        "run a".to_owned(),
        format!("shutdown {id}: the test is over"),
        format!("stop {id}: None"),
    ];
    assert_eq!(notes.all(), wanted);
}

#[tokio::test]
async fn a_single_run_calls_the_hooks_of_start_and_end_with_and_without_jobs() {
    let db = Database::migrated().await;
    let notes = Notes::default();
    let worker = noted(options(&db), &notes).init().await.unwrap();
    let (start, stop) = (format!("start {}", worker.id()), format!("stop {}: None", worker.id()));
    worker.run_once().await.unwrap();
    assert_eq!(notes.all(), [start.clone(), stop.clone()]);
    worker.create_utils().add_raw_job("a", 1, JobSpec::default()).await.unwrap();
    worker.run_once().await.unwrap();
    assert_eq!(notes.all()[2..], [start, "run a".to_owned(), stop]);
}

/// A hook that never returns.
struct Stuck;

impl Hooks for Stuck {
    fn on_start<'a>(&'a self, _worker_id: &'a str) -> HookFuture<'a> {
        Box::pin(std::future::pending())
    }

    fn on_stop<'a>(&'a self, _worker_id: &'a str, _error: Option<&'a str>) -> HookFuture<'a> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn hooks_that_never_return_delay_start_and_end_only_for_their_timeout() {
    let db = Database::migrated().await;
    let options = options(&db).hook_timeout(Duration::from_millis(20)).add_hooks(Stuck);
    let worker = options.define_raw_job("a", |_| async {}).init().await.unwrap();
    let utils = worker.create_utils();
    utils.add_raw_job("a", 1, JobSpec::default()).await.unwrap();
    tokio::time::timeout(testkit::DEADLINE, worker.run_once()).await.expect("it ends").unwrap();
    assert_eq!(utils.count_jobs().await.unwrap().total(), 0);
}

#[tokio::test]
async fn a_shutdown_is_not_held_up_by_a_hook_of_the_start() {
    let (db, called) = (Database::migrated().await, Arc::new(Notify::new()));
    let options =
        options(&db).hook_timeout(Duration::from_secs(3600)).add_hooks(StuckAtStart(called.clone()));
    let options = options.define_raw_job("a", |_| async {});
    let mut events = options.subscribe();
    let worker = options.init().await.unwrap();
    let handle = worker.handle();
    let run = tokio::spawn(async move { worker.run().await });
    tokio::time::timeout(testkit::DEADLINE, called.notified()).await.expect("the hook is called");
    handle.request_shutdown();
    tokio::time::timeout(testkit::DEADLINE, run).await.expect("it ends").unwrap().unwrap();
    let failed = next(&mut events, |event| matches!(event, WorkerEvent::ShutdownFailed { .. })).await;
    assert!(
        matches!(&failed, WorkerEvent::ShutdownFailed { error } if error.contains("hooks")),
        "{failed:?}"
    );
}

struct StuckAtStart(Arc<Notify>);

impl Hooks for StuckAtStart {
    fn on_start<'a>(&'a self, _worker_id: &'a str) -> HookFuture<'a> {
        self.0.notify_one();
        Box::pin(std::future::pending())
    }
}

/// The next event of a stream that fits.
async fn next(
    events: &mut (impl Stream<Item = WorkerEvent> + Unpin),
    fits: fn(&WorkerEvent) -> bool,
) -> WorkerEvent {
    let search = async {
        loop {
            let event = events.next().await.expect("the worker is there");
            if fits(&event) {
                return event;
            }
        }
    };
    tokio::time::timeout(testkit::DEADLINE, search).await.expect("the event is sent")
}

#[tokio::test]
async fn the_events_begin_with_the_set_up_and_end_without_an_error() {
    let db = Database::migrated().await;
    let options = options(&db).define_raw_job("a", |_| async {});
    let events = options.subscribe();
    let worker: Worker = options.init().await.unwrap();
    let id = worker.id().to_owned();
    worker.run_once().await.unwrap();
    drop(worker);
    // The stream ends with the worker.
    let all: Vec<WorkerEvent> =
        tokio::time::timeout(testkit::DEADLINE, events.collect()).await.expect("the stream ends");
    assert!(matches!(&all[0], WorkerEvent::Initialized { worker_id } if **worker_id == *id), "{all:?}");
    assert!(matches!(&all[1], WorkerEvent::Started { .. }), "{all:?}");
    assert!(matches!(all.last(), Some(WorkerEvent::Stopped { error: None })), "{all:?}");
}

#[tokio::test]
async fn an_error_that_ends_the_worker_is_sent_and_is_part_of_its_end() {
    if !testkit::can_listen() {
        return;
    }
    let db = Database::migrated().await;
    let notes = Notes::default();
    let options = noted(options(&db), &notes);
    let mut events = options.subscribe();
    let running = Running::start(options).await;
    next(&mut events, |event| matches!(event, WorkerEvent::ListenStarted)).await;
    let too_new = "insert into graphile_worker.migrations (id, breaking) values (21, true);
                   notify \"worker:migrate\", '{\"migrationNumber\": 21, \"breaking\": true}'";
    db.client().await.batch_execute(too_new).await.unwrap();
    let fatal = next(&mut events, |event| matches!(event, WorkerEvent::FatalError { .. })).await;
    let stopped = next(&mut events, |event| matches!(event, WorkerEvent::Stopped { .. })).await;
    let returned = running.join().await.unwrap_err().to_string();
    assert!(matches!(&fatal, WorkerEvent::FatalError { error } if **error == *returned), "{fatal:?}");
    let WorkerEvent::Stopped { error: Some(error) } = stopped else { panic!("{stopped:?}") };
    assert_eq!(*error, *returned);
    assert!(notes.all().last().unwrap().contains(&format!("{:?}", Some(&returned))), "{:?}", notes.all());
}

#[tokio::test]
async fn a_slow_listener_learns_how_many_events_it_lost() {
    let db = Database::migrated().await;
    let options = options(&db).define_raw_job("a", |_| async {});
    let mut events = options.subscribe();
    let worker = options.init().await.unwrap();
    // Three events or more per job, and more than the 8,192 that are kept.
    let jobs: Vec<atta::RawJobSpec> =
        (0..3_000).map(|n| atta::RawJobSpec::new("a", n, JobSpec::default()).unwrap()).collect();
    worker.create_utils().insert_raw_jobs(&jobs).await.unwrap();
    worker.run_once().await.unwrap();
    let Some(WorkerEvent::EventsLost { count }) = events.try_next() else { panic!("nothing was lost") };
    let mut kept = 0;
    while let Some(event) = events.try_next() {
        assert!(!matches!(event, WorkerEvent::EventsLost { .. }));
        kept += 1;
    }
    assert_eq!(kept, 8192);
    assert!(count >= 9_000 + 3 - kept, "{count}");
}
