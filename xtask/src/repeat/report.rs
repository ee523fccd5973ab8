//! The failures of all rounds, by test.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use super::Round;

/// A test that failed once.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) test: String,
    pub(super) binary: String,
    pub(super) round: Round,
    pub(super) pass: &'static str,
    /// The file with the whole output of the binary.
    pub(super) file: PathBuf,
}

/// Every test that failed, the most frequent first, with the settings of each failure; then the summary.
pub(super) fn write(rounds: usize, failures: &[Failure]) -> String {
    let mut tests: BTreeMap<(&str, &str), Vec<&Failure>> = BTreeMap::new();
    for failure in failures {
        tests.entry((&failure.binary, &failure.test)).or_default().push(failure);
    }
    let mut tests: Vec<_> = tests.into_iter().collect();
    tests.sort_by_key(|(_, failures)| std::cmp::Reverse(count_rounds(failures.iter().copied())));
    let mut text = String::new();
    for ((binary, test), failures) in tests {
        let failed = count_rounds(failures.iter().copied());
        // Writing to a string never fails.
        let _ = writeln!(text, "{test} (in {binary}): failed in {failed} of {rounds} rounds");
        for Failure { round: Round { number, threads, has_load }, pass, file, .. } in failures {
            let load = if *has_load { ", CPU load" } else { "" };
            let _ = writeln!(text, "    round {number}, {pass}, {threads} threads{load}: {}", file.display());
        }
    }
    let _ = write!(text, "repeat: {rounds} rounds, {} failed", count_rounds(failures));
    text
}

fn count_rounds<'a>(failures: impl IntoIterator<Item = &'a Failure>) -> usize {
    failures.into_iter().map(|failure| failure.round.number).collect::<BTreeSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(test: &str, number: usize, pass: &'static str) -> Failure {
        let file = format!("target/repeat/round-{number}-{pass}-it.log").into();
        Failure { test: test.into(), binary: "it".into(), round: Round::new(number), pass, file }
    }

    #[test]
    fn failures_are_listed_by_test_with_their_settings() {
        let failures = [
            failure("a", 1, "plain"),
            failure("b", 1, "plain"),
            failure("b", 1, "durable"),
            failure("b", 2, "plain"),
        ];
        let expected = "\
b (in it): failed in 2 of 3 rounds
    round 1, plain, 6 threads: target/repeat/round-1-plain-it.log
    round 1, durable, 6 threads: target/repeat/round-1-durable-it.log
    round 2, plain, 8 threads, CPU load: target/repeat/round-2-plain-it.log
a (in it): failed in 1 of 3 rounds
    round 1, plain, 6 threads: target/repeat/round-1-plain-it.log
repeat: 3 rounds, 2 failed";
        assert_eq!(write(3, &failures), expected);
        assert_eq!(write(10, &[]), "repeat: 10 rounds, 0 failed");
    }
}
