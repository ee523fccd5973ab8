//! `atta config`: the settings, and the source of each.

use serde_json::{Map, Value, json};

use crate::args::Config;
use crate::output::{Failure, print};
use crate::settings::{Entry, Settings};

pub(crate) fn run(settings: &Settings, args: &Config) -> Result<(), Failure> {
    let text = if args.json { as_json(&settings.entries)? } else { as_text(&settings.entries) };
    print(&text);
    Ok(())
}

/// Lines that a settings file could contain, with the source of each value as a comment.
fn as_text(entries: &[Entry]) -> String {
    let lines: Vec<String> =
        entries.iter().map(|entry| format!("{} = {}", entry.key, shown(&entry.value))).collect();
    let width = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0).min(60);
    entries
        .iter()
        .zip(lines)
        .map(|(entry, line)| {
            // A key without a value is not valid TOML.
            let line = if entry.value.is_null() { format!("# {} is not set", entry.key) } else { line };
            format!("{line:width$}  # {}\n", entry.origin)
        })
        .collect()
}

fn shown(value: &Value) -> String {
    match value {
        Value::Object(table) => {
            let pairs: Vec<String> =
                table.iter().map(|(key, value)| format!("{} = {value}", Value::from(key.as_str()))).collect();
            if pairs.is_empty() { "{}".into() } else { format!("{{ {} }}", pairs.join(", ")) }
        }
        value => value.to_string(),
    }
}

fn as_json(entries: &[Entry]) -> Result<String, Failure> {
    let table: Map<String, Value> = entries
        .iter()
        .map(|entry| {
            (entry.key.to_owned(), json!({ "value": entry.value, "from": entry.origin.to_string() }))
        })
        .collect();
    serde_json::to_string_pretty(&table)
        .map(|text| text + "\n")
        .map_err(|error| Failure::new(format!("can't write the settings as JSON: {error}")))
}
