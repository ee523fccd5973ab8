//! A test of the rule for statements: each file in `sql/queries` has one function of its name, and only that function
//! contains it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The opening of an inclusion of a statement, up to the folder. Inclusions of other files do not count.
const INCLUSION: &str = "include_str!(\"";

/// All files of Rust code in a folder, and in the folders in it.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// The name of the function in which this place of a file is: the last one that begins before it.
fn function_at(text: &str, place: usize) -> &str {
    let after = text[..place].rfind("fn ").map_or("", |start| &text[start + 3..]);
    let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(0);
    &after[..end]
}

/// The statements that a file includes, each with the function that includes it.
fn inclusions(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (place, _) in text.match_indices(INCLUSION) {
        let path = text[place + INCLUSION.len()..].split('"').next().unwrap_or_default();
        let Some((_, file)) = path.rsplit_once("sql/queries/") else { continue };
        found.push((file.trim_end_matches(".sql").to_owned(), function_at(text, place).to_owned()));
    }
    found
}

#[test]
fn every_statement_is_in_the_one_function_of_its_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = std::fs::read_dir(root.join("sql/queries")).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.to_str().unwrap().trim_end_matches(".sql").to_owned());
    let statements: BTreeSet<String> = names.collect();
    let mut functions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in rust_files(&root.join("src")) {
        for (statement, function) in inclusions(&std::fs::read_to_string(file).unwrap()) {
            functions.entry(statement).or_default().push(function);
        }
    }
    let expected: BTreeMap<String, Vec<String>> =
        statements.iter().map(|name| (name.clone(), vec![name.clone()])).collect();
    assert_eq!(functions, expected, "statements, and the functions that include them");
}

#[test]
fn a_statement_of_another_function_or_of_two_functions_is_noticed() {
    let one = "async fn poll() { let sql = include_str!(\"../sql/queries/poll.sql\"); }";
    let two = "const POLL: &str = include_str!(\"../../sql/queries/poll.sql\"); fn poll() {}";
    assert_eq!(inclusions(one), [("poll".to_owned(), "poll".to_owned())]);
    assert_eq!(inclusions(two), [("poll".to_owned(), String::new())]);
    assert_eq!(inclusions(&one.replace("queries", "functions")), []);
}
