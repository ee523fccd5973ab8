//! The page of the book about the command line is made from the arguments themselves.
//!
//! After a change of the arguments, write it anew: `cargo xtask book --write`.

use clap::{Arg, ArgAction, Command, CommandFactory};
use testkit::book::{assert_generated, cell};

use crate::args::Args;

/// Options with this heading are listed once, under `atta run`.
const OF_THE_WORKER: &str = "Options of the worker";

#[test]
fn the_page_about_the_command_line_is_that_of_the_arguments() {
    let mut atta = Args::command();
    atta.build();
    let mut page = String::from("## Options of every command\n\n");
    page.push_str(&table(atta.get_arguments().filter(|arg| arg.is_global_set() && arg.get_id() != "help")));
    for command in atta.get_subcommands() {
        describe(&mut page, command, "atta");
    }
    assert_generated("docs/reference/command-line.md", &page);
}

fn describe(page: &mut String, command: &Command, before: &str) {
    if command.is_hide_set() || command.get_name() == "help" {
        return;
    }
    let name = format!("{before} {}", command.get_name());
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    page.push_str(&format!("\n## {name}\n\n{}\n\n", paragraphs(&about)));
    if command.has_subcommands() {
        command.get_subcommands().for_each(|command| describe(page, command, &name));
        return;
    }
    let usage = command.clone().render_usage().to_string();
    page.push_str(&format!("```text\n{}\n```\n", usage.trim_start_matches("Usage: ")));
    let is_run = command.get_name() == "run";
    let is_of_worker = |arg: &Arg| arg.get_help_heading() == Some(OF_THE_WORKER);
    let own = command.get_arguments().filter(|arg| {
        !arg.is_global_set() && arg.get_id() != "help" && !arg.is_hide_set() && (is_run || !is_of_worker(arg))
    });
    let table = table(own);
    if !table.is_empty() {
        page.push_str(&format!("\n{table}"));
    }
    if !is_run && command.get_arguments().any(is_of_worker) {
        page.push_str("\nIt also has the options of [`atta run`](#atta-run).\n");
    }
}

/// Sentences end with a full stop on a page, which help texts leave out.
fn paragraphs(text: &str) -> String {
    let close = |part: &str| match part.trim() {
        part if part.ends_with(['.', ':']) => part.to_owned(),
        part => format!("{part}."),
    };
    text.split("\n\n").map(close).collect::<Vec<_>>().join("\n\n")
}

fn table<'a>(args: impl Iterator<Item = &'a Arg>) -> String {
    let rows: String = args.map(row).collect();
    match rows.as_str() {
        "" => String::new(),
        rows => format!("| argument | meaning | default |\n|---|---|---|\n{rows}"),
    }
}

fn row(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut paragraphs: Vec<String> = help.split("\n\n").map(|part| part.trim().to_owned()).collect();
    // Options whose default depends on other sources name it in their help.
    let mut default = String::new();
    if let Some(first) = paragraphs.first_mut()
        && let Some((text, named)) = first.clone().rsplit_once(" [default: ")
    {
        text.clone_into(first);
        named.trim_end_matches(']').clone_into(&mut default);
    }
    if arg.get_action().takes_values() && !arg.get_default_values().is_empty() {
        let values: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        default = format!("`{}`", values.join(","));
    }
    if !arg.is_hide_possible_values_set() && arg.get_action().takes_values() {
        for value in arg.get_possible_values().iter().filter(|value| !value.is_hide_set()) {
            let help = value.get_help().map(|help| format!(": {help}")).unwrap_or_default();
            paragraphs.push(format!("`{}`{help}", value.get_name()));
        }
    }
    if let Some(variable) = arg.get_env() {
        paragraphs.push(format!("Variable: `{}`", variable.to_string_lossy()));
    }
    let meaning: Vec<String> = paragraphs.iter().map(|part| cell(part)).collect();
    format!("| {} | {} | {} |\n", names(arg), meaning.join("<br>"), cell(&default))
}

fn names(arg: &Arg) -> String {
    let value = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
    if arg.is_positional() {
        return format!("`{}`", value.unwrap_or_else(|| arg.get_id().as_str().to_uppercase()));
    }
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let mut names: Vec<String> = short.into_iter().chain(long).collect();
    let takes_value = !matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::Count);
    // The value is shown once, after the last name.
    if let (Some(value), Some(last)) = (value.filter(|_| takes_value), names.last_mut()) {
        last.push_str(&format!(" {value}"));
    }
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
