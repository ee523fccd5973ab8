//! A simulation: several workers on a model of the database, with virtual time, all by one seed.
//!
//! A worker of the simulation has the planner, the list, the releases and the continuity of a real one. The driver, slots,
//! polls and heartbeats around them are imitated in [`process`], [`slots`] and [`replies`]. [`model`] has the rows of jobs, queues and workers, row
//! locks, the server's clock, and our statements as functions. Statements travel through [`network`], where each may be
//! slow, lost before or after it takes effect, or take effect late. [`faults`] has what befalls processes and the server,
//! and what operators and applications do. [`checks`] has the invariants, with every excuse.
//!
//! A [`Setup`] is data. The tests below draw setups by seed. If a run fails, it is repeated with smaller setups and the
//! same seed, and the trace of the smallest that fails is printed.
//!
//! `ATTA_TEST_SIMULATION=SEED` replays one seed and prints its trace. `ATTA_TEST_SIMULATION_SEEDS=N` runs the seeds up to N, and
//! `ATTA_TEST_SIMULATION_FIRST` is the first of them.
//!
//! [`differential`] compares the model with a real PostgreSQL.
//!
//! [`cron`] has the schedule of crontab items, and [`refusals`] what a worker does if the database refuses a statement.
//!
//! Not modelled: payloads without room, time limits of statements, statements that see an older state than the one they
//! change, locks of queue rows, crontab items whose jobs another transaction blocks, and hooks.
//! `docs/concepts/how-it-is-tested.md` lists what covers them.

mod agenda;
mod checks;
mod cron;
mod differential;
mod faults;
mod model;
mod network;
mod process;
mod producers;
mod refusals;
mod replies;
mod setup;
mod slots;
mod statement;
mod statistics;
mod worker;
mod world;

use std::time::Duration;

use model::{RefusedChange, Refusing};
use refusals::Refusal;
use setup::{FEW_QUEUES, Fault, FaultKind, Setup};
use world::{Ended, World};

const MS: Duration = Duration::from_millis(1);

/// The seeds of each test in a normal run.
const SEEDS: u64 = 770;

/// How many smaller setups are tried.
const SHRINKS: usize = 400;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Runs the seeds, or the one that is asked for.
fn run(count: u64, draw: impl Fn(&mut fastrand::Rng) -> Setup) {
    let one = variable("ATTA_TEST_SIMULATION");
    let count = variable("ATTA_TEST_SIMULATION_SEEDS").unwrap_or(count);
    let first = variable("ATTA_TEST_SIMULATION_FIRST").unwrap_or(1);
    for seed in one.map_or(first..=count, |seed| seed..=seed) {
        let setup = Setup { seed, ..draw(&mut fastrand::Rng::with_seed(seed)) };
        let ended = World::new(&setup, one.is_some()).run();
        if let Err(violation) = ended.result {
            let (setup, Ended { result, trace, .. }) = shrink(setup);
            println!("{}", trace.join("\n"));
            let smaller = result.err().unwrap_or_default();
            panic!(
                "seed {seed}: {violation}\nsmallest: {smaller}\n{setup:?}\nagain: ATTA_TEST_SIMULATION={seed}"
            );
        }
        if one.is_some() {
            println!("{}", ended.trace.join("\n"));
        }
    }
}

/// The smallest setup that is found to fail, and its run.
fn shrink(mut setup: Setup) -> (Setup, Ended) {
    let mut tries = 0;
    'again: loop {
        for smaller in setup.smaller() {
            tries += 1;
            if tries > SHRINKS {
                break 'again;
            }
            if World::new(&smaller, false).run().result.is_err() {
                setup = smaller;
                continue 'again;
            }
        }
        break;
    }
    let ended = World::new(&setup, true).run();
    (setup, ended)
}

fn any_setup(random: &mut fastrand::Rng) -> Setup {
    let setup = Setup {
        workers: random.usize(1..5),
        slots: random.usize(1..6),
        jobs: random.usize(1..70),
        queues: random.i32(0..6),
        slow: random.usize(0..3),
        local_queue: (random.u8(..) < 40).then(|| random.usize(1..20)),
        adds_for: Duration::from_secs(5),
        longest_delay: 300 * MS,
        ..Setup::default()
    };
    // Drawn from a source of its own.
    let mut random = fastrand::Rng::with_seed(random.get_seed() ^ 0x5eed);
    let is_durable = random.u8(..5) == 0;
    // Then most jobs have a queue of their own.
    let queues = if random.u8(..10) == 0 { 3 * FEW_QUEUES } else { setup.queues };
    Setup { is_durable, queues, ..setup }
}

/// With one worker of one slot, and all jobs there at the start, the order is exact.
#[test]
fn one_slot_runs_all_jobs_in_exact_order() {
    run(SEEDS, |random| Setup {
        workers: 1,
        slots: 1,
        is_exact: true,
        jobs: random.usize(1..60),
        local_queue: None,
        adds_for: Duration::ZERO,
        ..any_setup(random)
    });
}

/// The same while every statement takes long, as on a machine that is too busy. Without the limit on the time for which jobs
/// wait for more urgent ones, the order stays exact.
#[test]
fn one_slot_keeps_the_order_while_all_statements_take_long() {
    run(SEEDS, |random| Setup {
        workers: 1,
        slots: 1,
        is_exact: true,
        jobs: random.usize(1..60),
        local_queue: None,
        adds_for: Duration::ZERO,
        usual_delay: MS * random.u32(1..300),
        longest_delay: MS * random.u32(300..2000),
        patience: Duration::from_secs(600),
        ..any_setup(random)
    });
}

/// Jobs come in while several workers run. No job starts while a more urgent one has been there for long, no job runs
/// twice, queues are serial, and nothing waits for long while a slot is free.
#[test]
fn a_fleet_runs_every_job_once_and_roughly_in_order() {
    run(SEEDS, |random| Setup {
        longest_delay: 20 * MS,
        order_bound: Some(400 * MS),
        local_queue: None,
        ..any_setup(random)
    });
}

/// The order that is promised, where statements are quick: with and without a local queue.
#[test]
fn no_job_starts_while_a_more_urgent_one_has_waited_for_100_ms() {
    run(SEEDS, |random| {
        let longest_delay = MS * random.u32(1..=5);
        let local_queue = random.bool().then(|| random.usize(1..20));
        Setup { longest_delay, local_queue, order_bound: Some(100 * MS), ..any_setup(random) }
    });
}

/// Workers end when nothing is left that they could run. None leaves a job that is due, and no lock.
#[test]
fn a_worker_that_runs_until_nothing_is_left_leaves_no_due_job() {
    run(SEEDS, |random| {
        let adds_for = if random.bool() { Duration::ZERO } else { Duration::from_secs(5) };
        let lost = if random.bool() { random.f64() * 0.05 } else { 0.0 };
        let longest_delay = MS * random.u32(1..300);
        Setup { until_empty: true, failing: 0.1, adds_for, lost, longest_delay, ..any_setup(random) }
    });
}

/// A trigger cancels the claims of some jobs for a while, without an error. Their queues stay locked until the worker
/// searches for such locks.
#[test]
fn claims_that_a_trigger_cancels_in_part_leave_no_lock() {
    run(SEEDS, |random| {
        let setup = any_refusal(random, true);
        let cancelling = |it: Refusal| Refusal {
            refusing: Refusing { change: RefusedChange::CancelClaim, ..it.refusing },
            until: it.until + Duration::from_secs(90),
            ..it
        };
        Setup { refusal: setup.refusal.clone().map(cancelling), ..setup }
    });
}

/// Slow messages, lost, late and duplicated notifications, and tasks that fail.
#[test]
fn slow_messages_and_failing_tasks_lose_no_job() {
    run(SEEDS, |random| Setup {
        failing: 0.2,
        unheard: 0.3,
        late_notifications: 0.2,
        duplicated: 0.2,
        ..any_setup(random)
    });
}

/// Any statement may lose its connection, before or after it takes effect.
#[test]
fn lost_connections_lose_no_job() {
    run(SEEDS, |random| {
        let (lost, late) = (random.f64() * 0.1, random.f64() * 0.05);
        Setup { lost, late, unheard: 0.1, failing: 0.1, ..any_setup(random) }
    });
}

/// Processes that end, stop or are cut off, outages, steps of the clock, operators, locked rows and shutdowns.
#[test]
fn faults_lose_no_job() {
    run(SEEDS, |random| {
        let faults = (0..random.usize(1..6)).map(|_| Fault {
            at: MS * random.u32(0..30_000),
            kind: FaultKind::any(random),
            which: random.usize(..),
        });
        let faults = faults.collect();
        let (lost, long) = (random.f64() * 0.02, random.f64() * 0.1);
        let adds_for = Duration::from_secs(random.u64(5..60));
        Setup { faults, lost, long, unheard: 0.05, failing: 0.1, adds_for, ..any_setup(random) }
    });
}

/// Jobs with flags, of which one is forbidden for a while: no job with it starts, and no other waits for it.
#[test]
fn forbidden_flags_delay_only_their_jobs() {
    run(SEEDS, |random| Setup {
        flagged: random.f64() * 0.4,
        forbidden_for: MS * random.u32(0..20_000),
        failing: 0.1,
        lost: random.f64() * 0.02,
        ..any_setup(random)
    });
}

/// Some changes of some jobs are refused for a while.
fn any_refusal(random: &mut fastrand::Rng, is_visible: bool) -> Setup {
    let divisor = random.i64(1..12);
    let change = match random.u8(0..3) {
        0 => RefusedChange::Claim,
        1 => RefusedChange::Release,
        _ => RefusedChange::Both,
    };
    let refusing = Refusing { change, divisor, remainder: random.i64(0..divisor) };
    let from = MS * random.u32(0..5_000);
    let until = from + MS * random.u32(0..30_000);
    let lost = if random.bool() { random.f64() * 0.05 } else { 0.0 };
    let refusal = Some(Refusal { refusing, from, until, is_visible });
    Setup { refusal, lost, failing: 0.1, ..any_setup(random) }
}

/// A trigger refuses to change some jobs for a while. Other jobs are not delayed, and all are completed when the refusal has
/// ended.
#[test]
fn refused_statements_delay_only_their_jobs() {
    run(SEEDS, |random| any_refusal(random, true));
}

/// The same with a constraint, of which workers learn only by errors: batches of held jobs are refused, too.
#[test]
fn refused_batches_delay_only_their_jobs() {
    run(SEEDS, |random| any_refusal(random, false));
}

/// Several workers schedule crontab items, with all faults, and with steps of the clock by minutes. Each tick of an item is
/// added once, and cron does not disturb jobs.
#[test]
fn each_tick_of_cron_is_added_once() {
    run(SEEDS, |random| {
        let faults = (0..random.usize(0..6)).map(|_| {
            let kind = match random.u8(0..4) {
                0 => FaultKind::StepClock(random.i64(-240..2400)),
                _ => FaultKind::any(random),
            };
            Fault { at: MS * random.u32(0..360_000), kind, which: random.usize(..) }
        });
        let faults = faults.collect();
        let lost = if random.bool() { random.f64() * 0.05 } else { 0.0 };
        Setup {
            faults,
            lost,
            late: lost / 2.0,
            cron_for: Duration::from_secs(600),
            workers: random.usize(1..4),
            jobs: random.usize(1..20),
            ..any_setup(random)
        }
    });
}

/// The same seed gives the same trace.
#[test]
fn a_seed_replays_exactly() {
    for seed in 1..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let faults = (0..4).map(|_| Fault {
            at: MS * random.u32(0..10_000),
            kind: FaultKind::any(&mut random),
            which: random.usize(..),
        });
        let faults = faults.collect();
        let setup = Setup { seed, faults, lost: 0.05, late: 0.02, failing: 0.1, ..any_setup(&mut random) };
        let (one, other) = (World::new(&setup, true).run(), World::new(&setup, true).run());
        let difference = one.trace.iter().zip(&other.trace).find(|(one, other)| one != other);
        assert_eq!(difference, None, "seed {seed}");
        assert_eq!(one.trace.len(), other.trace.len(), "seed {seed}");
    }
}

/// Jobs that are added in batches, as in the table: a job costs at most this number of statements.
#[test]
fn a_job_of_a_batch_costs_few_statements() {
    for (workers, most) in [(1, 4.5), (3, 6.0), (10, 6.0)] {
        let setup = Setup { adds_for: Duration::from_secs(3), ..fleet(workers, 300 * workers) };
        let ended = World::new(&setup, false).run();
        assert_eq!(ended.result, Ok(()));
        let per_job = ended.statistics.for_jobs() as f64 / setup.jobs as f64;
        assert!(per_job < most, "{per_job:.2} statements per job with {workers} workers");
    }
}

/// Each add brings as many jobs as there are workers.
fn fleet(workers: usize, jobs: usize) -> Setup {
    Setup {
        seed: variable("ATTA_TEST_SIMULATION").unwrap_or(1),
        workers,
        slots: 10,
        jobs,
        batch: workers,
        slow: 1,
        adds_for: Duration::from_secs(10),
        longest_delay: 20 * MS,
        skips_scans: true,
        ..Setup::default()
    }
}

/// A fleet of each size, with as many thousand jobs as workers. Prints what each job costs: the table in
/// `docs/concepts/how-it-is-tested.md`.
#[test]
#[ignore = "takes a minute in an optimised build; prints a table"]
fn a_thousand_workers() {
    let sizes = match variable("ATTA_TEST_SIMULATION_WORKERS") {
        Some(workers) => vec![usize::try_from(workers).unwrap_or(1000)],
        None => vec![1, 10, 100, 1000],
    };
    println!(
        "| workers | jobs | time | statements per job | picks | claims | releases | found nothing | p50 | p99 |"
    );
    for workers in sizes {
        let setup = fleet(workers, 1000 * workers);
        let ended = World::new(&setup, false).run();
        println!("{}", ended.statistics.row(workers, setup.jobs));
        assert_eq!(ended.result, Ok(()));
    }
}
