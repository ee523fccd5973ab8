//! Parses the command line into [`Args`], with defaults from the settings file.
//!
//! The connection and the schema are options of every command. Their values in the settings file become the defaults of
//! these options before the final parse, so that no command has to look them up.

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args as _, CommandFactory, FromArgMatches};

use super::{Args, Run};
use crate::output::{Failure, note};
use crate::settings::{Fallback, File, Sources, without_secrets};

/// The parsed arguments, the settings file, and where values come from.
pub(crate) struct Said {
    pub(crate) args: Args,
    pub(crate) file: File,
    pub(crate) sources: Sources,
}

/// Reads the command line. Ends the process for `--help`, `--version` and bad usage, as clap does.
pub(crate) fn read() -> Result<Said, Failure> {
    let matches = command().try_get_matches().unwrap_or_else(|error| leave(error));
    refuse_stray_options(&matches);
    let config = matches.get_one::<std::path::PathBuf>("config");
    let file = File::read(config.map(std::path::PathBuf::as_path))?;
    let fallback = Fallback::find(&file);
    let sources = Sources {
        connection: matches.value_source("connection"),
        schema: matches.value_source("schema"),
        schema_is_from_file: fallback.schema.is_some(),
        is_dev: fallback.is_dev,
    };
    let matches = match fallback {
        // There are no defaults to add.
        Fallback { connection: None, schema: None, .. } => matches,
        fallback => {
            let command = with_defaults(command(), &fallback);
            command.try_get_matches().unwrap_or_else(|error| leave(error))
        }
    };
    let args = Args::from_arg_matches(&matches).unwrap_or_else(|error| leave(error));
    Ok(Said { args, file, sources })
}

/// Ends the process as clap does, but hides passwords. clap's message repeats arguments; one of them may be a
/// connection string in the wrong place, and such messages often end up in a log.
fn leave(mut error: clap::Error) -> ! {
    suggest(&mut error);
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let values =
        words.iter().flat_map(|word| [Some(word.as_str()), word.split_once('=').map(|(_, value)| value)]);
    let secrets: Vec<&str> = values.flatten().filter(|value| without_secrets(value) != *value).collect();
    if secrets.is_empty() || !error.use_stderr() {
        error.exit();
    }
    let text = secrets
        .iter()
        .fold(error.render().to_string(), |text, secret| text.replace(secret, &without_secrets(secret)));
    note(text.trim_end());
    std::process::exit(error.exit_code());
}

/// Names that other tools use for our commands.
const OTHER_NAMES: [(&str, &str); 6] = [
    ("cancel", "remove"),
    ("delete", "remove"),
    ("rm", "remove"),
    ("list", "jobs"),
    ("ls", "jobs"),
    ("start", "run"),
];

/// clap suggests the command whose name is most alike: `complete` for `delete`.
fn suggest(error: &mut clap::Error) {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else { return };
    if let Some((_, ours)) = OTHER_NAMES.iter().find(|(other, _)| other == given) {
        let suggested = ContextValue::Strings(vec![(*ours).to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, suggested);
    }
}

/// The command line. An empty variable counts as unset.
fn command() -> clap::Command {
    let is_empty = std::env::var_os("GRAPHILE_WORKER_SCHEMA").is_some_and(|value| value.is_empty());
    if is_empty { without_schema_variable(Args::command()) } else { Args::command() }
}

fn without_schema_variable(mut command: clap::Command) -> clap::Command {
    if command.get_arguments().any(|arg| arg.get_id() == "schema") {
        command = command.mut_arg("schema", |arg| arg.env(Resettable::Reset));
    }
    command.mut_subcommands(without_schema_variable)
}

fn with_defaults(mut command: clap::Command, fallback: &Fallback) -> clap::Command {
    for (id, default) in [("connection", &fallback.connection), ("schema", &fallback.schema)] {
        if let Some(default) = default
            && command.get_arguments().any(|arg| arg.get_id() == id)
        {
            // The command is built once and lives as long as the process; clap needs its texts to do so, too.
            let default: &'static str = default.clone().leak();
            command = command.mut_arg(id, |arg| arg.default_value(default));
        }
    }
    command.mut_subcommands(|subcommand| with_defaults(subcommand, fallback))
}

/// Rejects options of the worker before another command: `atta -j 2 migrate` sets an option of a worker that does not
/// run.
fn refuse_stray_options(matches: &ArgMatches) {
    let Some((name, _)) = matches.subcommand() else { return };
    if ["run", "dev", "config"].contains(&name) {
        return;
    }
    let options = Run::augment_args(clap::Command::new("run"));
    let stray = options
        .get_arguments()
        .find(|option| matches.value_source(option.get_id().as_str()) == Some(ValueSource::CommandLine));
    if let Some(stray) = stray {
        let long = stray.get_long().unwrap_or_default();
        let text = format!("--{long} is an option of the worker, and can't be given with '{name}'");
        Args::command().error(ErrorKind::ArgumentConflict, text).exit();
    }
}
