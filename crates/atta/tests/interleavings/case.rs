//! The parts of a case, and what is known of it after it ran.

use std::collections::BTreeMap;

use serde_json::Value;
use tokio_postgres::{SimpleQueryMessage, SimpleQueryRow};

use crate::actors::Actor;
use crate::world::{Rows, World};

/// An actor as it takes part in a case.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) actor: Actor,
    /// Its first statement pauses between its snapshot and its first row.
    pub(crate) is_gated: bool,
    /// Its last transaction is rolled back.
    pub(crate) rolls_back: bool,
}

/// Actors that run side by side; a group has as many cases as there are orders of their steps.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) world: World,
    pub(crate) parts: Vec<Part>,
}

/// What a session was asked, and how it ended.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) part: usize,
    pub(crate) text: String,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Rows(Vec<Reported>),
    Failed(String, String),
    /// Waits for these actors.
    Waits(Vec<usize>),
    Paused,
}

/// One row of a reply.
#[derive(Clone, Debug)]
pub(crate) struct Reported {
    pub(crate) id: Option<i64>,
    /// False: the statement reported that it did not write this job.
    pub(crate) is_written: bool,
    pub(crate) values: BTreeMap<String, String>,
}

/// What happened in a case.
pub(crate) struct Ran {
    /// The steps as they were taken, and at each step which actors could have taken one.
    pub(crate) order: Vec<(usize, Vec<usize>)>,
    pub(crate) events: Vec<Event>,
    pub(crate) before: Rows,
    pub(crate) after: Rows,
    /// Faults that only the run itself can see.
    pub(crate) faults: Vec<String>,
}

/// A row of a reply; None for other messages.
pub(crate) fn reported(message: &SimpleQueryMessage) -> Option<Reported> {
    let SimpleQueryMessage::Row(row) = message else { return None };
    let mut values: BTreeMap<String, String> = row
        .columns()
        .iter()
        .enumerate()
        .filter_map(|(index, column)| Some((column.name().to_owned(), row.get(index)?.to_owned())))
        .collect();
    if let Some(object) = json_object(row) {
        values = object.into_iter().map(|(name, value)| (name, value.to_string())).collect();
    }
    let id = values.get("id").or(values.get("job_id")).and_then(|id| id.parse().ok());
    let is_false = |name: &str| values.get(name).is_some_and(|value| value == "f");
    let is_written = !is_false("is_written") && !is_false("is_returned");
    Some(Reported { id, is_written, values })
}

/// A job that the statement returned as one column of JSON text.
fn json_object(row: &SimpleQueryRow) -> Option<serde_json::Map<String, Value>> {
    match serde_json::from_str(row.get(0)?) {
        Ok(Value::Object(object)) if row.len() == 1 => Some(object),
        _ => None,
    }
}
