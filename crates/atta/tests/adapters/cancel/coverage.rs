//! Compares the source code with the cases here, so that none is missing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::functions::{ADDING, MANAGING, READING};
use super::{connections, migrations, workers};

/// Functions that take the caller's connection: they are tested with every connection.
const BY_CONNECTION: [&str; 6] = [
    "utils/add.rs add_job_in",
    "utils/add.rs add_jobs_in",
    "utils/add.rs add_batch_job_in",
    "utils/add.rs add_raw_job_in",
    "utils/add.rs add_raw_jobs_in",
    "utils/bulk.rs insert_raw_jobs_in",
];

fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    read(&root, &root, &mut found);
    found
}

fn read(root: &Path, folder: &Path, found: &mut Vec<(String, String)>) {
    let paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    for path in paths {
        if path.is_dir() {
            read(root, &path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            found.push((name, std::fs::read_to_string(path).unwrap()));
        }
    }
}

/// The texts between `start` and one of `ends`, for each line that begins with `start`.
fn starts<'a>(text: &'a str, start: &str, ends: &[char]) -> Vec<&'a str> {
    let rest = text.lines().filter_map(|line| line.trim_start().strip_prefix(start));
    rest.filter_map(|rest| rest.split(ends).next()).map(str::trim_end).collect()
}

#[test]
fn every_public_async_function_has_a_cancellation_test() {
    let mut functions = BTreeSet::new();
    for (file, text) in sources() {
        functions
            .extend(starts(&text, "pub async fn ", &['(', '<']).iter().map(|name| format!("{file} {name}")));
    }
    let cases = [ADDING, MANAGING, READING].into_iter().flatten().map(|case| case.name);
    let listed = [workers::COVERED, migrations::COVERED, &BY_CONNECTION].into_iter().flatten().copied();
    let covered: BTreeSet<String> = cases.chain(listed).map(str::to_owned).collect();
    assert!(functions.len() > 40, "{functions:?}");
    assert_eq!(functions, covered, "add a case for a new function, or remove the case of one that has gone");
}

#[test]
fn no_public_function_returns_a_future_unseen() {
    for (file, text) in sources() {
        for line in text.lines().filter(|line| line.trim_start().starts_with("pub fn ")) {
            assert!(!line.contains("Future"), "{file}: write it as an async fn, or extend this test: {line}");
        }
    }
}

#[test]
fn every_connection_that_can_add_jobs_is_used() {
    let mut implementations = BTreeSet::new();
    for (_, text) in sources() {
        implementations.extend(starts(&text, "impl AddJobs for ", &['{']).into_iter().map(str::to_owned));
    }
    let covered = connections::COVERED.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(implementations, covered, "add the connection to the harness");
}

#[test]
fn every_public_async_function_states_whether_it_is_cancel_safe() {
    for (file, text) in sources() {
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        for (n, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("pub async fn ")) {
            let above = lines[..n].iter().rev();
            let docs: Vec<&str> =
                above.take_while(|line| line.starts_with("///") || line.starts_with("#[")).copied().collect();
            let docs = docs.concat();
            assert!(
                docs.contains("Cancel safe") || docs.contains("future is dropped"),
                "{file}: state in the comment whether it is cancel safe: {line}"
            );
        }
    }
}
