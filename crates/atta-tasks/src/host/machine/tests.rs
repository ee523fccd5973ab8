//! Tables: what happens, when, and what the machine decides.

use super::*;
use crate::host::event::{NewRun, RunningJob};
use crate::wire::{Failure, Pong};

/// A step of a table.
enum Step {
    Event(Event),
    /// The socket takes more: the result is what is sent.
    Take,
}
use Step::Take;

const KILL_AFTER: Duration = Duration::from_millis(2000);

fn open() -> Step {
    Step::Event(Event::Open)
}

fn run(number: u64) -> Step {
    limited(number, None)
}

fn limited(number: u64, limit: impl Into<Option<u64>>) -> Step {
    Step::Event(Event::Run(NewRun {
        number,
        job: RunningJob { id: 1, task: "t".into(), attempt: 1 },
        line: format!("run {number}\n").into_bytes(),
        limit: limit.into().map(Duration::from_millis),
    }))
}

fn give_up(run: u64) -> Step {
    Step::Event(Event::GiveUp(run))
}

fn close() -> Step {
    Step::Event(Event::Close)
}

fn timer() -> Step {
    Step::Event(Event::Timer)
}

fn message(message: HostMessage) -> Step {
    Step::Event(Event::Message(message))
}

fn ready() -> Step {
    message(HostMessage::Ready { version: "v".into(), reports_start: true })
}

fn ready_without_reports() -> Step {
    message(HostMessage::Ready { version: "v".into(), reports_start: false })
}

fn unloaded(task: &str) -> Step {
    message(HostMessage::Unloaded { task: task.into(), error: "broken".into() })
}

fn started(run: u64) -> Step {
    message(HostMessage::Started(vec![run]))
}

fn done(run: u64) -> Step {
    message(HostMessage::Done(vec![run]))
}

fn failed(run: u64) -> Step {
    message(HostMessage::Failed { run, failure: Failure { error: "e".into(), items: None } })
}

fn pong(ping: u64) -> Step {
    message(HostMessage::Pong(Pong::One(ping)))
}

fn socket_closed() -> Step {
    Step::Event(Event::SocketClosed)
}

fn ended(how: &str) -> Step {
    Step::Event(Event::Ended(End { how: how.into(), stderr: None }))
}

/// A command in a few words.
fn text(command: &Command) -> String {
    match command {
        Command::StartProcess => "start".into(),
        Command::KillProcess => "kill".into(),
        Command::CloseSocket(last) => format!("close {:?}", String::from_utf8_lossy(last)),
        Command::PauseTasks => "pause".into(),
        Command::ResumeTasks { except } => format!("resume except {except:?}"),
        Command::Publish(Load { phase, deaths }) => match phase {
            Phase::Starting => format!("starting {deaths}"),
            Phase::Ready(broken) => format!("ready {deaths} broken {}", broken.len()),
            Phase::Failed(how) => format!("failed {deaths}: {how}"),
        },
        Command::Answer(run, Answer::Failed(failure)) => format!("{run} failed: {}", failure.error),
        Command::Answer(run, answer) => format!("{run} {answer:?}"),
        Command::AddJobs { call, .. } => format!("add for {call}"),
        Command::Report(Report::Logged { job, .. }) => {
            format!("log of {:?}", job.as_ref().map(|job| job.id))
        }
        Command::Report(Report::Broken(task)) => format!("log broken {}", task.identifier),
        Command::Report(Report::Ready { is_expected, .. }) => format!("log ready, expected {is_expected}"),
        Command::Report(Report::StillLoading) => "log still loading".into(),
        Command::Report(Report::Died { how, pause }) => format!("log died in {pause:?}: {how}"),
        Command::Report(Report::NotReady { how, is_repeated }) => {
            format!("log not ready, repeated {is_repeated}: {how}")
        }
        Command::Report(Report::LateEnd { run }) => format!("log late {run}"),
    }
}

fn machine(logs_first_load: bool) -> Machine {
    Machine::new(Rules { name: "x".into(), kill_after: KILL_AFTER, logs_first_load })
}

/// Follows a table of milliseconds, steps and expected commands. Returns the machine.
fn follow(steps: impl IntoIterator<Item = (u64, Step, &'static str)>) -> Machine {
    follow_with(machine(false), steps)
}

fn follow_with(mut machine: Machine, steps: impl IntoIterator<Item = (u64, Step, &'static str)>) -> Machine {
    let begin = Instant::now();
    for (position, (at, step, expected)) in steps.into_iter().enumerate() {
        let now = begin + Duration::from_millis(at);
        let is_early = machine.deadline().is_some_and(|deadline| deadline > now);
        let found = match step {
            Step::Event(event) => {
                assert!(
                    !matches!(event, Event::Timer) || !is_early,
                    "step {position}: the timer would not fire"
                );
                let commands = machine.handle(event, now);
                commands.iter().map(text).collect::<Vec<_>>().join("; ")
            }
            Take => {
                let bytes = machine.take_outgoing(now).unwrap_or_default();
                String::from_utf8(bytes).expect("UTF-8").trim_end().replace('\n', "; ")
            }
        };
        assert_eq!(found, expected, "step {position} at {at} ms");
    }
    machine
}

#[test]
fn a_host_gets_runs_only_while_it_is_ready() {
    follow([
        (0, run(0), "0 NotStarted"),
        (0, open(), "start"),
        (1, run(1), "1 NotStarted"),
        (9, unloaded("bad"), ""),
        (10, ready(), "log ready, expected true; resume except [\"bad\"]; ready 0 broken 1"),
        (11, run(2), ""),
        (11, run(3), ""),
        (11, Take, "run 2; run 3"),
        (12, done(2), "2 Done"),
        (12, failed(3), "3 failed: e"),
        (12, done(3), "log late 3"),
        (13, ready(), ""),
    ]);
}

#[test]
fn tasks_that_can_not_be_loaded_are_logged_unless_the_caller_reports_them() {
    let steps = |logged| [(0, open(), "start"), (9, unloaded("bad"), ""), (10, ready(), logged)];
    follow(steps("log ready, expected true; resume except [\"bad\"]; ready 0 broken 1"));
    let logged = "log broken bad; log ready, expected true; resume except [\"bad\"]; ready 0 broken 1";
    follow_with(machine(true), steps(logged));
}

#[test]
fn runs_that_may_have_started_fail_with_their_process_and_others_are_returned() {
    // With a time limit or not, sent or not, started or not.
    for (limit, is_sent, is_started, answer) in [
        (None, false, false, "0 NotStarted"),
        (None, true, false, "0 failed: the x host died while it ran the task: exit code 1"),
        (Some(500), false, false, "0 NotStarted"),
        (Some(500), true, false, "0 NotStarted"),
        (Some(500), true, true, "0 failed: the x host died while it ran the task: exit code 1"),
    ] {
        let mut machine = follow([
            (0, open(), "start"),
            (0, ready(), "log ready, expected true; resume except []; ready 0 broken 0"),
            (0, limited(0, limit), ""),
        ]);
        let now = Instant::now();
        if is_sent {
            assert!(machine.take_outgoing(now).is_some());
        }
        if is_started {
            machine.handle(Event::Message(HostMessage::Started(vec![0])), now);
        }
        let commands = machine.handle(Event::Ended(End { how: "exit code 1".into(), stderr: None }), now);
        let texts: Vec<String> = commands.iter().map(text).collect();
        let expected = ["pause", "starting 1", answer, "log died in 100ms: exit code 1"];
        assert_eq!(texts, expected, "{limit:?}, sent {is_sent}, started {is_started}");
    }
}

#[test]
fn a_host_that_does_not_report_starts_counts_as_started_when_a_run_is_sent() {
    follow([
        (0, open(), "start"),
        (0, ready_without_reports(), "log ready, expected true; resume except []; ready 0 broken 0"),
        (0, limited(0, 500), ""),
        (400, Take, "run 0"),
        (900, timer(), ""),
        (900, Take, "{\"abort\":[0]}"),
        (901, failed(0), "0 TimedOut"),
    ]);
}

#[test]
fn a_run_that_was_given_up_never_starts_later() {
    let machine = follow([
        (0, open(), "start"),
        (0, ready(), "log ready, expected true; resume except []; ready 0 broken 0"),
        // Not sent: it is discarded.
        (1, run(0), ""),
        (1, give_up(0), ""),
        (1, Take, ""),
        // Sent: it is aborted, and counts as lost until it has ended.
        (2, run(1), ""),
        (2, Take, "run 1"),
        (3, give_up(1), ""),
        (3, Take, "{\"abort\":[1]}"),
        (4, give_up(1), ""),
        (4, Take, ""),
    ]);
    assert_eq!(machine.runs.lost(), 1);
    let machine = follow_with(machine, [(5, failed(1), "log late 1")]);
    assert_eq!(machine.runs.lost(), 0);
}

/// A Python function that sleeps in its thread: the host answers all the time.
#[test]
fn a_run_that_exceeds_its_time_limit_is_given_up_when_the_host_gives_a_sign_of_life() {
    let machine = follow([
        (0, open(), "start"),
        (0, ready(), "log ready, expected true; resume except []; ready 0 broken 0"),
        (0, limited(0, 1000), ""),
        (0, Take, "run 0"),
        // The limit counts from here.
        (600, started(0), ""),
        (1600, timer(), ""),
        (1600, Take, "{\"abort\":[0]}"),
        // It does not obey.
        (2600, timer(), ""),
        (2600, Take, "{\"ping\":1,\"run\":0}"),
        (2610, pong(1), "0 TimedOut"),
        (2611, run(1), ""),
        (2611, Take, "{\"abort\":[0]}; run 1"),
        (2612, done(1), "1 Done"),
    ]);
    assert_eq!((machine.runs.lost(), machine.deadline()), (1, None));
}

/// A run that obeys its abort signal, and one that ends in time.
#[test]
fn a_result_after_the_time_limit_does_not_count() {
    follow([
        (0, open(), "start"),
        (0, ready(), "log ready, expected true; resume except []; ready 0 broken 0"),
        (0, limited(0, 1000), ""),
        (0, limited(1, 1000), ""),
        (0, Take, "run 0; run 1"),
        (0, started(0), ""),
        (0, started(1), ""),
        (999, done(1), "1 Done"),
        (1000, timer(), ""),
        (1001, done(0), "0 TimedOut"),
    ]);
}

/// An endless loop.
#[test]
fn a_host_that_gives_no_sign_of_life_is_killed_and_started_again() {
    follow([
        (0, open(), "start"),
        (0, ready(), "log ready, expected true; resume except []; ready 0 broken 0"),
        (0, limited(0, 1000), ""),
        (0, run(1), ""),
        (0, Take, "run 0; run 1"),
        (0, started(0), ""),
        (1000, timer(), ""),
        (2000, timer(), ""),
        (2000, Take, "{\"abort\":[0]}; {\"ping\":1,\"run\":0}"),
        (2001, run(2), ""),
        // The death is published before the run ends because of it.
        (4000, timer(), "pause; starting 1; 0 TimedOut; 2 NotStarted; kill"),
        (4001, run(3), "3 NotStarted"),
        // A result from just before the end counts.
        (4002, done(1), "1 Done"),
        (
            4003,
            ended("killed"),
            "log died in 100ms: a task exceeded its time limit and blocked all others, so it was killed",
        ),
        (4103, timer(), "start"),
        (4200, ready(), "log ready, expected false; resume except []; ready 1 broken 0"),
    ]);
}

/// The task that blocks the host has no time limit; the one that waits behind it has one.
#[test]
fn a_run_that_does_not_start_is_returned_if_its_host_is_blocked() {
    follow([
        (0, open(), "start"),
        (0, ready(), "log ready, expected true; resume except []; ready 0 broken 0"),
        (0, run(0), ""),
        (0, limited(1, 1000), ""),
        (0, Take, "run 0; run 1"),
        // It is only slow.
        (1000, timer(), ""),
        (1000, Take, "{\"ping\":1,\"run\":1}"),
        (2900, pong(1), ""),
        // It is blocked.
        (3900, timer(), ""),
        (3900, Take, "{\"ping\":2,\"run\":1}"),
        (3901, pong(1), ""),
        (5900, timer(), "pause; starting 1; kill"),
    ]);
}

#[test]
fn too_many_lost_runs_end_their_host() {
    let mut machine = follow([
        (0, open(), "start"),
        (0, ready(), "log ready, expected true; resume except []; ready 0 broken 0"),
    ]);
    let (begin, most) = (Instant::now(), crate::host::runs::MOST_LOST as u64);
    for number in 0..=most {
        let Step::Event(event) = limited(number, 1000) else { continue };
        assert!(machine.handle(event, begin).is_empty());
    }
    assert!(machine.take_outgoing(begin).is_some());
    machine.handle(Event::Message(HostMessage::Started((0..=most).collect())), begin);
    assert!(machine.handle(Event::Timer, begin + Duration::from_secs(1)).is_empty());
    let late = begin + Duration::from_secs(2);
    assert!(machine.handle(Event::Timer, late).is_empty());
    let commands = machine.handle(Event::Message(HostMessage::Pong(Pong::All)), late);
    assert!(commands.iter().any(|command| matches!(command, Command::KillProcess)));
    let timed_out = commands.iter().filter(|command| matches!(command, Command::Answer(_, Answer::TimedOut)));
    assert_eq!(timed_out.count() as u64, most + 1);
}

#[test]
fn a_process_that_closes_its_socket_is_killed_if_it_goes_on() {
    let steps = || {
        [
            (0, open(), "start"),
            (0, ready(), "log ready, expected true; resume except []; ready 0 broken 0"),
            (0, run(0), ""),
            (0, Take, "run 0"),
            (5, socket_closed(), "pause; starting 1"),
        ]
    };
    follow_with(
        follow(steps()),
        [(
            6,
            ended("exit code 3"),
            "0 failed: the x host died while it ran the task: exit code 3; log died in 100ms: exit code 3",
        )],
    );
    follow(steps().into_iter().chain([
        (2005, timer(), "kill"),
        (
            2006,
            ended("killed"),
            "0 failed: the x host died while it ran the task: it closed its socket without ending, so it was \
             killed; log died in 100ms: it closed its socket without ending, so it was killed",
        ),
    ]));
}

#[test]
fn starts_that_fail_follow_after_growing_pauses_and_are_logged_once_per_reason() {
    let machine = follow_with(
        machine(true),
        [
            (0, open(), "start"),
            (10, ended("a"), "log not ready, repeated false: a; failed 0: a"),
            (110, timer(), "start"),
            (120, ended("a\nat 12:00"), "log not ready, repeated true: a\nat 12:00; failed 0: a\nat 12:00"),
            (320, timer(), "start"),
            (330, ended("b"), "log not ready, repeated false: b; failed 0: b"),
            (730, timer(), "start"),
        ],
    );
    assert!(machine.is_repeating());
    let machine = follow_with(
        machine,
        [(800, ready(), "log ready, expected false; resume except []; ready 0 broken 0")],
    );
    assert!(!machine.is_repeating());
}

#[test]
fn the_first_failed_start_is_not_logged_if_the_caller_reports_it() {
    follow([
        (0, open(), "start"),
        (10, ended("a"), "log not ready, repeated true: a; failed 0: a"),
        (110, timer(), "start"),
        (120, ended("b"), "log not ready, repeated false: b; failed 0: b"),
    ]);
}

#[test]
fn the_pause_starts_again_after_a_process_that_was_stable() {
    let ready_text = "log ready, expected true; resume except []; ready 0 broken 0";
    follow([
        (0, open(), "start"),
        (0, ready(), ready_text),
        (5, ended("a"), "pause; starting 1; log died in 100ms: a"),
        (105, timer(), "start"),
        (105, ready(), "log ready, expected false; resume except []; ready 1 broken 0"),
        (110, ended("a"), "pause; starting 2; log died in 200ms: a"),
        (310, timer(), "start"),
        (310, ready(), "log ready, expected false; resume except []; ready 2 broken 0"),
        (10_310, ended("a"), "pause; starting 3; log died in 100ms: a"),
    ]);
}

#[test]
fn a_host_that_loads_for_long_is_logged_once() {
    let machine = follow([(0, open(), "start"), (5000, timer(), "log still loading")]);
    assert_eq!(machine.deadline(), None);
    follow_with(machine, [(9000, ready(), "log ready, expected false; resume except []; ready 0 broken 0")]);
}

#[test]
fn a_closed_host_ends_by_itself_or_is_killed() {
    let ready_text = "log ready, expected true; resume except []; ready 0 broken 0";
    // While it loads.
    let machine = follow([
        (0, open(), "start"),
        (1, close(), "close \"\""),
        (1, close(), ""),
        (5, ended("exit code 0"), ""),
    ]);
    assert!(machine.is_over());
    // While it runs jobs: results still count.
    let machine = follow([
        (0, open(), "start"),
        (0, ready(), ready_text),
        (0, run(0), ""),
        (0, run(1), ""),
        (0, Take, "run 0; run 1"),
        (0, run(2), ""),
        (1, close(), "2 NotStarted; close \"\""),
        (2, done(0), "0 Done"),
        (2, run(3), "3 NotStarted"),
        (3, socket_closed(), ""),
        (2001, timer(), "kill"),
        (2002, ended("killed"), "1 failed: the x host of the task was closed"),
    ]);
    assert!(machine.is_over());
    // With a run that was given up and may wait in a blocked process.
    follow([
        (0, open(), "start"),
        (0, ready(), ready_text),
        (0, run(0), ""),
        (0, Take, "run 0"),
        (0, give_up(0), ""),
        (1, close(), "close \"{\\\"abort\\\":[0]}\\n\""),
        (251, timer(), "kill"),
    ]);
    // While it waits for its next start.
    let machine = follow([
        (0, open(), "start"),
        (1, ended("a"), "log not ready, repeated true: a; failed 0: a"),
        (2, close(), ""),
    ]);
    assert!(machine.is_over() && machine.deadline().is_none());
    // While it is about to be killed.
    let machine = follow([
        (0, open(), "start"),
        (0, ready(), ready_text),
        (1, socket_closed(), "pause; starting 1"),
        (2, close(), ""),
        (2, timer(), "kill"),
        (3, ended("killed"), ""),
    ]);
    assert!(machine.is_over());
}

#[test]
fn every_process_is_told_that_the_worker_aborts_its_jobs() {
    follow([
        (0, open(), "start"),
        (0, ready(), "log ready, expected true; resume except []; ready 0 broken 0"),
        (1, Step::Event(Event::Abort), ""),
        (1, Take, "{\"abort\":true}"),
        (2, Step::Event(Event::Send(b"reply\n".to_vec())), ""),
        (3, ended("a"), "pause; starting 1; log died in 100ms: a"),
        (103, timer(), "start"),
        (103, Take, "{\"abort\":true}"),
    ]);
}

#[test]
fn an_invalid_call_is_answered_with_an_error() {
    follow([
        (0, open(), "start"),
        (1, message(HostMessage::InvalidCall { call: 5, error: "no".into() }), ""),
        (1, Take, "{\"error\":\"no\",\"reply\":5}"),
    ]);
}
