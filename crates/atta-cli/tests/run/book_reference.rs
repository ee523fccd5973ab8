//! The pages of the book about settings, variables and exit codes are made from the code, and from what the binary does.
//!
//! After a change, write them anew: `cargo xtask book --write`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use testkit::book::{assert_generated, cell, files, items, read};

use crate::{Folder, run};

/// The options that set something, with values. Options for a single invocation have no key.
const OPTIONS: [&str; 21] = [
    "--connection=postgres://x/y",
    "--schema=x",
    "--tasks=x",
    "--crontab=x",
    "--jobs=2",
    "--max-pool-size=2",
    "--poll-interval=1s",
    "--no-prepared-statements",
    "--forbidden-flag=x",
    "--claims=durable",
    "--allow-breaking-migration",
    "--allow-broken-tasks",
    "--log-format=json",
    // These have no key.
    "--config",
    "--once",
    "--fail-on-error",
    "--watch",
    "--schema-only",
    "--cleanup",
    "--help",
    "--version",
];
const FIRST_WITHOUT_KEY: usize = 13;

/// Variables that some keys have besides, or instead of, `ATTA_KEY`, with a value.
const OTHER_VARIABLES: [(&str, &str); 5] = [
    ("DATABASE_URL", "postgres://x/y"),
    ("GRAPHILE_WORKER_SCHEMA", "x"),
    ("RUST_LOG", "info"),
    ("GRAPHILE_LOGGER_DEBUG", "1"),
    ("GRAPHILE_WORKER_DEBUG", "1"),
];

/// The variables that are no settings, and what they mean.
const VARIABLES: [(&str, &str); 14] = [
    ("ATTA_NODE", "the program that runs tasks in JavaScript; by default `node` on the PATH"),
    (
        "ATTA_PYTHON",
        "the program that runs tasks in Python; by default `python3`, then `python`, on the PATH",
    ),
    ("ATTA_HOST_<EXTENSION>", "the command of a [host](../guides/hosts.md) for files with this extension"),
    ("ATTA_POSTGRES_BIN", "the folder of the PostgreSQL binaries for `atta dev`"),
    ("NO_COLOR", "switches colours off"),
    ("PGREQUIREAUTH", "rejected: atta does not support this protection"),
    ("PGREQUIREPEER", "rejected: atta does not support this protection"),
    ("PGSSLCRLDIR", "rejected: atta does not support this protection"),
    ("PGSERVICEFILE", "the file with services; by default `~/.pg_service.conf`"),
    ("PGSYSCONFDIR", "the folder of the machine's own file with services"),
    ("RUST_LOG", "as `ATTA_LOG`"),
    ("GRAPHILE_LOGGER_DEBUG", "any value: as `ATTA_LOG=debug`"),
    ("GRAPHILE_WORKER_DEBUG", "the same"),
    ("GRAPHILE_WORKER_SCHEMA", "the schema that contains the jobs"),
];

/// Variables that atta sets for programs and hosts; docs/guides/tasks.md describes the former.
const OF_PROGRAMS: [&str; 9] = [
    "ATTA_HOST_SCRIPT",
    "GRAPHILE_WORKER_PAYLOAD_FORMAT",
    "GRAPHILE_WORKER_TASK_IDENTIFIER",
    "GRAPHILE_WORKER_JOB_ID",
    "GRAPHILE_WORKER_JOB_KEY",
    "GRAPHILE_WORKER_JOB_ATTEMPTS",
    "GRAPHILE_WORKER_JOB_MAX_ATTEMPTS",
    "GRAPHILE_WORKER_JOB_PRIORITY",
    "GRAPHILE_WORKER_JOB_RUN_AT",
];

/// A key of `atta.toml`.
struct Setting {
    key: String,
    meaning: String,
    default: String,
    option: Option<String>,
    variables: Vec<String>,
}

fn config(folder: &Folder, options: &[&str], variables: &[(String, String)]) -> BTreeMap<String, Value> {
    let mut command = folder.command(&[&["config", "--json"], options].concat());
    let run = run(command.envs(variables.iter().cloned()));
    assert_eq!(run.code, 0, "{}", run.err);
    serde_json::from_str(&run.out).expect("it prints JSON")
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::Array(list) if list.is_empty() => "none".into(),
        Value::Object(table) if table.is_empty() => "none".into(),
        Value::String(text) => format!("`{text}`"),
        value => format!("`{value}`"),
    }
}

/// The settings: keys and meanings from the source; defaults, options and variables from what `atta config` reports.
fn settings() -> Vec<Setting> {
    let folder = Folder::new();
    let source = read("crates/atta-cli/src/settings/file.rs");
    let defaults = config(&folder, &[], &[]);
    let with_options = config(&folder, &OPTIONS[..FIRST_WITHOUT_KEY], &[]);
    let value = |key: &str| match &defaults[key]["value"] {
        Value::Null => "1s".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(_) => "x".to_owned(),
        value => value.to_string(),
    };
    let own: Vec<_> =
        defaults.keys().map(|key| (format!("ATTA_{}", key.to_uppercase()), value(key))).collect();
    let mut by_variables = vec![config(&folder, &[], &own)];
    for (name, value) in OTHER_VARIABLES {
        by_variables.push(config(&folder, &[], &[(name.to_owned(), value.to_owned())]));
    }
    let from = |config: &BTreeMap<String, Value>, key: &str| {
        config[key]["from"].as_str().expect("it has an origin").to_owned()
    };
    let of_item = |item: testkit::book::Item| {
        let field = item.code.trim_start_matches("pub(super) ");
        let key = field.split(':').next().expect("a field has a name").to_owned();
        let option = Some(from(&with_options, &key)).filter(|name| name.starts_with("--"));
        let variables = by_variables.iter().map(|config| from(config, &key));
        let variables = variables.filter_map(|from| from.strip_prefix('$').map(str::to_owned)).collect();
        Setting { default: shown(&defaults[&key]["value"]), meaning: item.doc, key, option, variables }
    };
    let found: Vec<Setting> = items(&source, "pub(crate) struct File {")
        .into_iter()
        .filter(|item| item.code.starts_with("pub(super) ") && item.code.contains("Option<"))
        .map(of_item)
        .collect();
    let keys: BTreeSet<&str> = found.iter().map(|setting| setting.key.as_str()).collect();
    let effective: BTreeSet<&str> = defaults.keys().map(String::as_str).collect();
    assert_eq!(keys, effective, "each key of the file has a comment and is shown by `atta config`");
    found
}

#[test]
fn the_page_about_settings_is_that_of_the_code() {
    let mut page = String::from("| key | meaning | default | option | variable |\n|---|---|---|---|---|\n");
    for setting in settings() {
        let option = setting.option.map(|name| format!("`{name}`")).unwrap_or_default();
        let variables: Vec<_> = setting.variables.iter().map(|name| format!("`{name}`")).collect();
        let (meaning, variables) = (cell(&setting.meaning), variables.join(", "));
        page.push_str(&format!(
            "| `{}` | {meaning} | {} | {option} | {variables} |\n",
            setting.key, setting.default
        ));
    }
    assert_generated("docs/reference/settings.md", &page);
}

#[test]
fn every_option_of_the_worker_is_known_here() {
    let help = Folder::new().atta(&["run", "--help"]).out;
    let words = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let names = words.filter_map(|line| line.split([' ', ',', '=']).find(|word| word.starts_with("--")));
    for name in names {
        let is_known = OPTIONS.iter().any(|option| option.split('=').next() == Some(name));
        assert!(is_known, "{name} is not in OPTIONS");
    }
}

/// The connection options that libpq's variables set: pairs of name and variable in the source.
fn connection_variables() -> Vec<(String, String)> {
    let source = read("crates/atta/src/db/connection/options.rs");
    let (_, table) = source.split_once("const KNOWN: &[(&str, &str)] = &[\n").expect("the table");
    let (table, _) = table.split_once("];").expect("the table ends");
    let pairs = table.lines().filter_map(|line| {
        let mut names = line.split('"').skip(1).step_by(2);
        Some((names.next()?.to_owned(), names.next()?.to_owned()))
    });
    pairs.filter(|(_, variable)| !variable.is_empty()).collect()
}

#[test]
fn the_page_about_variables_is_that_of_the_code() {
    let row = |name: &str, meaning: &str| format!("| `{name}` | {} |\n", cell(meaning));
    let head = "| variable | meaning |\n|---|---|\n";
    let mut page = format!("## Programs and output\n\n{head}");
    VARIABLES.iter().for_each(|(name, meaning)| page.push_str(&row(name, meaning)));
    page.push_str(&format!("\n## Settings\n\n{head}"));
    for setting in settings() {
        let own = setting.variables.iter().filter(|name| name.starts_with("ATTA_"));
        own.for_each(|name| page.push_str(&row(name, &format!("`{}`", setting.key))));
    }
    page.push_str(&format!(
        "\n## Connection\n\n{head}{}",
        row("DATABASE_URL", "the database, as the option `-c`")
    ));
    for (option, variable) in connection_variables() {
        page.push_str(&row(&variable, &format!("`{option}`")));
    }
    assert_generated("docs/reference/environment.md", &page);
}

#[test]
fn every_variable_in_the_sources_is_known_here() {
    let mut known: BTreeSet<String> = VARIABLES.iter().map(|(name, _)| (*name).to_owned()).collect();
    known.extend(OF_PROGRAMS.map(str::to_owned));
    known.extend(connection_variables().into_iter().map(|(_, variable)| variable));
    known.extend(settings().into_iter().flat_map(|setting| setting.variables));
    let mut found = BTreeSet::new();
    for path in ["crates/atta/src", "crates/atta-cli/src", "crates/atta-tasks/src", "crates/cluster/src"]
        .map(|path| files(path, &["rs"]))
        .concat()
    {
        if path.contains("/tests") {
            continue;
        }
        let source = read(&path);
        let code = source.split("#[cfg(test)]").next().unwrap_or_default();
        found.extend(code.split('"').filter(|text| is_variable(text)).map(str::to_owned));
    }
    let unknown: Vec<_> = found.difference(&known).collect();
    assert!(unknown.is_empty(), "variables that no page describes: {unknown:?}");
    let gone: Vec<_> =
        VARIABLES.iter().filter(|(name, _)| !name.contains('<') && !found.contains(*name)).collect();
    assert!(gone.is_empty(), "variables that no source reads: {gone:?}");
}

fn is_variable(text: &str) -> bool {
    let starts = ["ATTA_", "GRAPHILE_", "PG"].iter().any(|prefix| text.len() > 5 && text.starts_with(prefix));
    let is_one = starts || ["NO_COLOR", "RUST_LOG", "DATABASE_URL"].contains(&text);
    // The tests have variables of their own.
    is_one
        && !text.starts_with("ATTA_TEST_")
        && text.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_')
}

#[test]
fn the_page_about_exit_codes_is_that_of_the_code() {
    let source = read("crates/atta-cli/src/output/exit.rs");
    let mut page = String::from("| code | meaning |\n|---|---|\n| 0 | Success. |\n");
    for item in items(&source, "impl Exit {") {
        let code = item.code.rsplit("= ").next().unwrap_or_default().trim_end_matches(';').to_owned();
        page.push_str(&format!("| {code} | {} |\n", cell(&item.doc)));
    }
    assert_generated("docs/reference/exit-codes.md", &page);
}

#[test]
fn every_exit_code_has_a_name() {
    for path in files("crates/atta-cli/src", &["rs"]) {
        let source = read(&path);
        for sign in ["ExitCode::from(", "process::exit(", "code: "] {
            for (at, _) in source.match_indices(sign) {
                let next = source[at + sign.len()..].chars().next();
                assert!(
                    !next.is_some_and(|letter| letter.is_ascii_digit()),
                    "{path}: use output::exit::Exit"
                );
            }
        }
    }
}
