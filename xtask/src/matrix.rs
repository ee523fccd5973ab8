//! `cargo xtask matrix [ROW]`: one fault per row, one guarantee per column. crates/testkit/src/matrix.rs runs them; the
//! rows are in crates/atta/tests/matrix and crates/atta-cli/tests/matrix.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::{Result, cargo, install, say};

/// The rows that `cargo xtask test` runs, by a part of their names: five of them, in both binaries. All rows take three
/// minutes or more, which is too long for each run of the tests.
pub(crate) const SAMPLE: &str = "hung";

const BINARIES: [(&str, &str); 2] = [("atta", "matrix"), ("atta-cli", "hosted_matrix")];

const COLUMNS: [&str; 7] =
    ["fault", "heartbeat age", "other queues start", "unqueued start", "releases", "cron", "shutdown"];

/// Text that is wider than this goes into a note below the table.
const WIDEST: usize = 14;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only rows whose names contain this
    #[arg(default_value = "", hide_default_value = true)]
    row: String,
}

pub(crate) fn run(options: &Options) -> Result {
    run_rows(&options.row)
}

/// Runs the rows whose names contain `wanted`, all for an empty text. Fails if a cell is red.
pub(crate) fn run_rows(wanted: &str) -> Result {
    install::postgres()?;
    install::node_packages()?;
    install::runtimes()?;
    crate::run(command(&BINARIES).arg("--no-run"))?;
    let mut rows = Vec::new();
    for binary in BINARIES {
        rows.extend(run_binary(binary, wanted)?);
    }
    println!("{}", table(&rows));
    let red = rows.iter().flatten().filter(|cell| cell.starts_with("FAIL")).count();
    println!("matrix: {} rows, {red} red cells", rows.len());
    if red > 0 { Err(format!("matrix: {red} red cells")) } else { Ok(()) }
}

/// Built with the features of the whole workspace, as the other tests are.
fn command(binaries: &[(&str, &str)]) -> Command {
    let mut command = cargo();
    command.args(["test", "--quiet", "--workspace", "--all-features"]);
    for (_, target) in binaries {
        command.args(["--test", target]);
    }
    command
}

/// Runs the rows of one binary; each is a list of its name and its cells. They are printed as they arrive.
fn run_binary(binary: (&str, &str), wanted: &str) -> Result<Vec<Vec<String>>> {
    let failed = |error| format!("{}: {error}", binary.1);
    let mut command = command(&[binary]);
    let mut child = command
        .env("ATTA_MATRIX", wanted)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let printed = child.stdout.take().ok_or_else(|| failed("no output".to_owned()))?;
    let mut rows = Vec::new();
    for line in BufReader::new(printed).lines() {
        let line = line.map_err(|error| failed(error.to_string()))?;
        if let Some(row) = read(&line) {
            say(&format!("    {}", row.join(" | ")));
            rows.push(row);
        }
    }
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    // A red cell causes an exit code too; a binary that did not finish has fewer rows than it should.
    if rows.is_empty() || (!status.success() && !rows.iter().flatten().any(|cell| cell.starts_with("FAIL"))) {
        return Err(failed(status.to_string()));
    }
    Ok(rows)
}

/// Parses a line as a row, if it is one.
fn read(line: &str) -> Option<Vec<String>> {
    let cells = line.strip_prefix("matrix\t")?;
    Some(cells.split('\t').map(str::to_owned).collect())
}

/// One line per row; reasons that are too long for a column are printed below, by number.
fn table(rows: &[Vec<String>]) -> String {
    let mut notes: Vec<String> = Vec::new();
    let mut lines: Vec<Vec<String>> = vec![COLUMNS.map(str::to_owned).into()];
    for row in rows {
        let cells = row.iter().enumerate().map(|(index, cell)| {
            if index == 0 || cell.len() <= WIDEST {
                return cell.clone();
            }
            let (word, reason) = cell.split_once(' ').unwrap_or((cell, ""));
            let note = notes.iter().position(|note| note == reason).unwrap_or_else(|| {
                notes.push(reason.to_owned());
                notes.len() - 1
            });
            format!("{word} ({})", note + 1)
        });
        lines.push(cells.collect());
    }
    let width =
        |column: usize| lines.iter().filter_map(|line| line.get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    let pad = |line: &Vec<String>| {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    let notes = notes.iter().zip(1..).map(|(note, number)| format!("({number}) {note}"));
    lines.iter().map(pad).chain(notes).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_one_table_with_notes() {
        let rows: Vec<Vec<String>> = [
            "matrix\tnothing\tok 0.1 s\tok 0.1 s\tok 0.1 s\tok 0.1 s\tok 0.1 s\tok 0.1 s",
            "noise",
            "matrix\ta full pool\tok 0.1 s\t- no thread is left\tok 0.1 s\tok 0.1 s\tFAIL not within 2.5 s\tFAIL not within 2.5 s",
        ]
        .iter()
        .filter_map(|line| read(line))
        .collect();
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[0].starts_with("fault        heartbeat age  other queues start"), "{text}");
        assert!(lines[2].ends_with("FAIL (2)  FAIL (2)"), "{text}");
        assert_eq!(lines[3..], ["(1) no thread is left", "(2) not within 2.5 s"]);
    }
}
