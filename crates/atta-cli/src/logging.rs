//! The log: lines on standard error, for people or for machines.
//!
//! The library and the tasks report events by `tracing`. Job and task come first in a line, from the event or from the
//! span of the job's run. In JSON, numbers are numbers, and lists and objects are what they are (see [`STRUCTURES`]). If the
//! reader of the log goes away or stops reading, the worker must not stop: [`writer`] writes the lines on its own thread
//! and ignores errors. Rust programs ignore SIGPIPE from the start.

mod writer;

use std::fmt::{self, Write as _};
use std::io::IsTerminal;

use chrono::{SecondsFormat, Utc};
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::LogFormat;
use crate::output::{Failure, controls_terminal};
use writer::Lines;
pub(crate) use writer::{flush, is_started, push};

/// Starts the log. `filter` is a level, or has the form `info,atta::worker=debug`.
pub(crate) fn start(filter: &str, format: LogFormat) -> Result<(), Failure> {
    let is_plain_level = !filter.contains(['=', ',']);
    // Other libraries log only warnings and errors, unless the filter requests more.
    let directives = if is_plain_level { format!("warn,atta={filter}") } else { filter.to_owned() };
    let targets: Targets = directives.parse().map_err(|error| {
        Failure::new(format!("invalid log filter {filter:?}: {error}"))
            .with_hint("use error, warn, info, debug, trace or off, or as in info,atta::worker=debug")
    })?;
    let is_coloured = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let started = writer::start(move |dropped| about_dropped_lines(dropped, format, is_coloured));
    let lines = started.map_err(|error| Failure::new(format!("can't start the log: {error}")))?;
    let log = Log { format, is_coloured, lines };
    // Only tests start the log twice, and then the first one stays.
    let _ = tracing_subscriber::registry().with(log.with_filter(targets)).try_init();
    Ok(())
}

/// Fields whose values are lists or objects. `tracing` passes them on as text, which is JSON: metadata of hosted tasks, and
/// Rust's debug format of lists of numbers and of names.
const STRUCTURES: [&str; 5] = ["meta", "jobs", "tasks", "identifiers", "steps"];

struct Log {
    format: LogFormat,
    is_coloured: bool,
    lines: &'static Lines,
}

/// The line that takes the place of lines that were dropped.
fn about_dropped_lines(dropped: u64, format: LogFormat, is_coloured: bool) -> String {
    let mut fields =
        Fields { message: "lines of the log were dropped: nobody read them".into(), ..Fields::default() };
    fields.values.insert("lines".into(), dropped.into());
    let mut line = match format {
        LogFormat::Text => fields.into_text(&now(), Level::WARN, is_coloured),
        LogFormat::Json => fields.into_json(&now(), Level::WARN, module_path!()),
    };
    line.push('\n');
    line
}

fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// The fields of a span or an event, in order.
#[derive(Clone, Debug, Default)]
struct Fields {
    message: String,
    values: Map<String, Value>,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Log {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        // In text format, only job and task are shown: people know which worker they look at, and a failure shows its
        // attempt.
        let is_wanted = |key: &str| self.format == LogFormat::Json || key == "job" || key == "task";
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(outer) = span.extensions().get::<Fields>() {
                for (key, value) in outer.values.iter().filter(|(key, _)| is_wanted(key)) {
                    fields.values.entry(key.clone()).or_insert_with(|| value.clone());
                }
            }
        }
        event.record(&mut fields);
        let level = *event.metadata().level();
        let mut line = match self.format {
            LogFormat::Text => fields.into_text(&now(), level, self.is_coloured),
            LogFormat::Json => fields.into_json(&now(), level, event.metadata().target()),
        };
        line.push('\n');
        self.lines.push(line);
    }
}

impl Fields {
    fn into_text(mut self, time: &str, level: Level, is_coloured: bool) -> String {
        let (dim, colour, reset) =
            if is_coloured { ("\x1b[2m", colour(level), "\x1b[0m") } else { ("", "", "") };
        let mut line = format!("{dim}{time}{reset} {colour}{level:5}{reset} ");
        // The level shows to which stream a task has written.
        self.values.remove("stream");
        // The worker's id is the same in all lines about jobs. Of the attempts, only those that failed matter to people.
        if self.values.contains_key("job") {
            self.values.remove("worker");
            if !self.values.contains_key("of") {
                self.values.remove("attempt");
            }
        }
        // Printed last, because an error may have several lines.
        let error = self.values.remove_entry("error");
        if let Some(task) = self.values.remove("task") {
            line.push_str(&plain(&task));
            if let Some(job) = self.values.remove("job") {
                // Writing to a String never fails.
                let _ = write!(line, " {}", plain(&job));
            }
            line.push_str(": ");
        }
        line.push_str(&tame(&self.message));
        for (key, value) in self.values.iter().chain(error.as_ref().map(|(key, value)| (key, value))) {
            let _ = write!(line, " {dim}{key}={reset}{}", tame(&plain(value)));
        }
        line
    }

    fn into_json(self, time: &str, level: Level, target: &str) -> String {
        let mut object = Map::new();
        object.insert("time".into(), time.into());
        object.insert("level".into(), level.as_str().to_ascii_lowercase().into());
        object.insert("message".into(), self.message.into());
        object.insert("target".into(), target.into());
        for (key, value) in self.values {
            let value = if STRUCTURES.contains(&key.as_str()) { structure(value) } else { value };
            object.entry(key).or_insert(value);
        }
        Value::Object(object).to_string()
    }

    fn insert(&mut self, field: &Field, value: impl Into<Value>) {
        let value = value.into();
        if field.name() == "message" {
            self.message = plain(&value);
        } else {
            self.values.insert(field.name().to_owned(), value);
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.insert(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, value);
    }
}

/// The list or object that a text contains; the text itself if it contains neither.
fn structure(value: Value) -> Value {
    match value.as_str().map(serde_json::from_str::<Value>) {
        Some(Ok(parsed)) if parsed.is_array() || parsed.is_object() => parsed,
        _ => value,
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// Indents further lines, and prevents a task's output from changing the terminal's colours or moving its cursor.
fn tame(text: &str) -> String {
    let mut tamed = String::with_capacity(text.len());
    for c in text.trim_end().chars() {
        match c {
            '\n' => tamed.push_str("\n    "),
            '\t' => tamed.push(c),
            c if controls_terminal(c) => tamed.extend(c.escape_default()),
            c => tamed.push(c),
        }
    }
    tamed
}

fn colour(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        _ => "\x1b[36m",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_task_and_job_first_and_is_tame() {
        let mut fields = Fields { message: "two\nlines \x1b[2J".into(), ..Fields::default() };
        for (key, value) in
            [("worker", "w".into()), ("task", "hello".into()), ("job", 7.into()), ("a", 1.into())]
        {
            let value: Value = value;
            fields.values.insert(key.into(), value);
        }
        let line = fields.into_text("now", Level::INFO, false);
        assert_eq!(line, "now INFO  hello 7: two\n    lines \\u{1b}[2J a=1");
    }

    #[test]
    fn the_worker_is_named_in_lines_that_are_not_about_a_job() {
        let mut fields = Fields { message: "worker started".into(), ..Fields::default() };
        fields.values.insert("worker".into(), "w".into());
        fields.values.insert("tasks".into(), 2.into());
        assert_eq!(fields.into_text("now", Level::INFO, false), "now INFO  worker started tasks=2 worker=w");
    }

    #[test]
    fn lists_and_objects_are_recognised_and_other_texts_are_not() {
        for text in [r#"{"a": [1]}"#, r#"["a", "b\"c"]"#, "[]"] {
            assert_eq!(structure(text.into()).to_string().replace(' ', ""), text.replace(' ', ""));
        }
        for text in ["7", "null", "\"text\"", "[half", "", "{}x"] {
            assert_eq!(structure(text.into()), Value::from(text));
        }
        assert_eq!(structure(7.into()), Value::from(7));
    }
}
