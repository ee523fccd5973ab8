//! Parses the output of cargo and libtest: test binaries, names of tests, failures. Starts no process; it only builds
//! the command of a binary.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::Result;

/// Used in place of a test's name if the binary failed without naming one.
pub(super) const WHOLE_BINARY: &str = "(the test binary itself)";

/// A test binary of the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TestBinary {
    /// The name of its target, such as `it`.
    pub(super) target: String,
    executable: PathBuf,
    /// Cargo runs a test in the folder of its package.
    package: PathBuf,
}

impl TestBinary {
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        command
    }
}

/// The test binaries that `cargo test --no-run --message-format=json` names.
pub(super) fn binaries(messages: &str) -> Result<Vec<TestBinary>> {
    let found: Vec<TestBinary> = messages.lines().filter_map(binary).collect();
    if found.is_empty() { Err("cargo named no test binary".to_owned()) } else { Ok(found) }
}

fn binary(line: &str) -> Option<TestBinary> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Some(TestBinary {
        target: text(&message["target"]["name"]).filter(|_| is_test)?,
        executable: text(&message["executable"])?.into(),
        package: PathBuf::from(text(&message["manifest_path"])?).parent()?.into(),
    })
}

/// The tests that a binary lists with `--list`.
pub(super) fn names(listed: &str) -> Vec<String> {
    listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// The tests whose names contain at least one word of each list in `wanted` (an empty list matches all) and no word of
/// `skipped`.
pub(super) fn choose<'a>(listed: &'a [String], wanted: &[&[&str]], skipped: &[&str]) -> Vec<&'a str> {
    let fits = |name: &str, words: &[&str]| words.is_empty() || words.iter().any(|word| name.contains(word));
    let is_chosen = |name: &&str| {
        wanted.iter().all(|words| fits(name, words)) && !skipped.iter().any(|word| name.contains(word))
    };
    listed.iter().map(String::as_str).filter(is_chosen).collect()
}

/// The tests that failed, from the output of a test binary.
///
/// libtest prints `test NAME ... FAILED` when a test ends, but output of other processes may appear in between.
/// Therefore the list at the end is used, which has each name on a separate indented line. A binary that was killed or
/// crashed prints no list; then the lines above are used, and the binary itself if there are none.
pub(super) fn failures(printed: &str, has_succeeded: bool) -> Vec<String> {
    if has_succeeded {
        return Vec::new();
    }
    let mut failed = last_list(printed);
    if failed.is_empty() {
        failed = printed.lines().filter_map(failed_line).map(str::to_owned).collect();
    }
    if failed.is_empty() {
        failed.push(WHOLE_BINARY.to_owned());
    }
    failed
}

/// `failures:` is printed twice: before the outputs, and before the names.
fn last_list(printed: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_list = false;
    for line in printed.lines() {
        match line.strip_prefix("    ") {
            _ if line == "failures:" => {
                names.clear();
                is_list = true;
            }
            Some(name) if is_list && !name.starts_with(' ') => names.push(name.to_owned()),
            _ => is_list = false,
        }
    }
    names
}

fn failed_line(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "
running 3 tests
test a::works ... ok
test a::breaks ... some process printed this
FAILED
test b::hangs ... ignored, not a test
test b::breaks - should panic ... FAILED

failures:

---- a::breaks stdout ----

thread 'a::breaks' panicked at a.rs:1:1:
    an indented line
failures:
    a line of a test's own output

---- b::breaks stdout ----
note: nothing

failures:
    a::breaks
    b::breaks

test result: FAILED. 1 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s
";

    #[test]
    fn the_names_at_the_end_are_the_failures() {
        assert_eq!(failures(PRINTED, false), ["a::breaks", "b::breaks"]);
        assert_eq!(failures(PRINTED, true), [""; 0], "a binary that succeeded has none");
    }

    #[test]
    fn a_binary_that_crashed_reports_the_known_failures() {
        let cut = "running 2 tests\ntest a::breaks ... FAILED\ntest b::aborts ... ";
        assert_eq!(failures(cut, false), ["a::breaks"]);
        assert_eq!(failures("running 1 test\n", false), [WHOLE_BINARY]);
    }

    #[test]
    fn tests_are_chosen_by_all_lists_of_words() {
        let listed =
            names("worker::a: test\nfaults::b: test\ncron::worker_c: test\nbench: benchmark\n\n3 tests\n");
        assert_eq!(listed.len(), 3);
        assert_eq!(choose(&listed, &[&[], &[]], &[]).len(), 3);
        assert_eq!(choose(&listed, &[&["worker::", "faults::"], &[]], &[]), ["worker::a", "faults::b"]);
        assert_eq!(choose(&listed, &[&["worker::", "faults::"], &["b", "c"]], &[]), ["faults::b"]);
        assert_eq!(choose(&listed, &[&[], &[]], &["faults::", "cron::"]), ["worker::a"]);
    }

    #[test]
    fn cargo_names_the_binaries() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/p/Cargo.toml","target":{"name":"it"},"profile":{"test":true},"executable":"/t/it-1"}
{"reason":"compiler-artifact","manifest_path":"/p/Cargo.toml","target":{"name":"atta"},"profile":{"test":false},"executable":"/t/atta"}
{"reason":"compiler-artifact","manifest_path":"/p/Cargo.toml","target":{"name":"macros"},"profile":{"test":true},"executable":null}
{"reason":"build-finished","success":true}"#;
        let expected = TestBinary { target: "it".into(), executable: "/t/it-1".into(), package: "/p".into() };
        assert_eq!(binaries(messages).unwrap(), [expected]);
        assert!(binaries("").is_err());
    }
}
