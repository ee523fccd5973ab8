//! The model against PostgreSQL: random sequences of our statements, over several sessions with open transactions, run on
//! both. After each statement the test compares what was returned (the ids of jobs in their order), all rows, the errors,
//! and which transaction a waiting statement waits for.
//!
//! The real side calls the functions of `queries`. The time is the server's, since most statements use it: before each
//! statement the model's clock is set to the time that the server has returned last. To let time pass, all times in the
//! tables are moved into the past. Times are compared with a tolerance; a sequence whose result depends on less than that
//! ends there.
//!
//! `ATTA_TEST_DIFFERENTIAL=SEED` replays one sequence, and `ATTA_TEST_DIFFERENTIAL_SEQUENCES=N` runs N of them. A sequence
//! that fails is repeated with fewer steps, and the shortest that fails is printed.
//!
//! Not compared: our own statements while their transaction is open, except for held claims; locks of queue rows.

mod applications;
mod claims;
mod operation;
mod pair;
mod real;
mod recovery;
mod releases;
mod state;

use operation::Operation;
use pair::{Pair, Verdict};

use super::variable;

/// The sequences of a normal test run: they take about ten seconds.
const SEQUENCES: u64 = 300;

/// The least number of steps that are compared per sequence, on average. On a busy machine, more sequences end early.
const LEAST_STEPS: u64 = 8;

/// How many shorter sequences are tried.
const SHRINKS: usize = 300;

fn draw(seed: u64) -> Vec<Operation> {
    Operation::sequence(&mut fastrand::Rng::with_seed(seed))
}

/// Runs a sequence. Returns its steps, as far as they were compared, and whether it ended early.
async fn run(pair: &mut Pair, sequence: &[Operation]) -> (Vec<String>, Result<(), String>, bool) {
    pair.reset().await;
    let mut steps = Vec::new();
    for operation in sequence {
        let verdict = pair.step(operation).await;
        steps.extend(pair.take_notes());
        match verdict {
            Verdict::Same => {}
            Verdict::Undecided => return (steps, Ok(()), true),
            Verdict::Different(difference) => return (steps, Err(difference), false),
        }
    }
    (steps, Ok(()), false)
}

/// Leaves out parts of a sequence that fails, the largest first.
async fn shrink(pair: &mut Pair, mut sequence: Vec<Operation>) -> Vec<Operation> {
    let (mut size, mut tries) = (sequence.len() / 2, 0);
    while size > 0 {
        let mut start = 0;
        while start < sequence.len() && tries < SHRINKS {
            let end = (start + size).min(sequence.len());
            let mut shorter = sequence.clone();
            shorter.drain(start..end);
            tries += 1;
            match run(pair, &shorter).await.1 {
                Err(_) => sequence = shorter,
                Ok(()) => start = end,
            }
        }
        size /= 2;
    }
    sequence
}

#[tokio::test]
async fn the_model_does_what_postgresql_does() {
    let one = variable("ATTA_TEST_DIFFERENTIAL");
    let count = variable("ATTA_TEST_DIFFERENTIAL_SEQUENCES").unwrap_or(SEQUENCES);
    let mut pair = Pair::new().await;
    let mut undecided = 0;
    for seed in one.map_or(1..=count, |seed| seed..=seed) {
        let sequence = draw(seed);
        let (steps, result, is_undecided) = run(&mut pair, &sequence).await;
        undecided += u64::from(is_undecided);
        if one.is_some() {
            println!("{}", steps.join("\n"));
        }
        let Err(difference) = result else { continue };
        let shortest = shrink(&mut pair, sequence).await;
        let (steps, result, _) = run(&mut pair, &shortest).await;
        let difference = result.err().unwrap_or(difference);
        panic!(
            "sequence {seed}, shortened:\n{}\n{difference}\nagain: ATTA_TEST_DIFFERENTIAL={seed}",
            steps.join("\n")
        );
    }
    println!(
        "{count} sequences, {undecided} of them ended undecided; {} steps, {} of them waited, {} claims were refused",
        pair.steps, pair.waits, pair.refusals
    );
    let is_whole = one.is_none() && count >= SEQUENCES;
    assert!(!is_whole || pair.waits > 20, "hardly a statement has waited");
    assert!(!is_whole || pair.refusals > 5, "hardly a claim was refused");
    assert!(!is_whole || pair.steps as u64 > LEAST_STEPS * count, "only {} steps were compared", pair.steps);
}
