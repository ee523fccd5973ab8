//! Records the log, so that tests can read it.

use std::fmt::Debug;
use std::sync::{Mutex, Once};

use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// A line of the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    pub(crate) level: String,
    pub(crate) job: Option<i64>,
    pub(crate) task: Option<String>,
    pub(crate) message: String,
    pub(crate) meta: Option<String>,
}

static LINES: Mutex<Vec<Line>> = Mutex::new(Vec::new());

/// Starts to record the log of all tests of the process.
pub(crate) fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let kept = tracing_subscriber::registry().with(Keeper);
        tracing::subscriber::set_global_default(kept).expect("nobody else sets the subscriber");
    });
}

/// The recorded lines that contain this text. Texts of different tests should differ.
pub(crate) fn lines_with(text: &str) -> Vec<Line> {
    let lines = LINES.lock().unwrap();
    lines.iter().filter(|line| line.message.contains(text)).cloned().collect()
}

struct Keeper;

impl<S: tracing::Subscriber> Layer<S> for Keeper {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut line = Line { level: event.metadata().level().to_string(), ..Line::default() };
        event.record(&mut line);
        let mut lines = LINES.lock().unwrap();
        // Limits the memory if there are very many lines.
        if lines.len() < 100_000 {
            lines.push(line);
        }
    }
}

impl Visit for Line {
    fn record_i64(&mut self, field: &Field, value: i64) {
        if field.name() == "job" {
            self.job = Some(value);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "task" => self.task = Some(value.to_owned()),
            "meta" => self.meta = Some(value.to_owned()),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}
