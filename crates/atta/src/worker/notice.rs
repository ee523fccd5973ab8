//! The payloads of notifications. Any client of the database can send one with any content, so this file is fuzzed.

use crate::GRAPHILE_REVISION;

/// More announced jobs than this make no difference.
const MANY: i64 = 1_000_000;

/// What a notification of new jobs announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Announced {
    /// This many jobs in this worker's schema.
    Here(usize),
    /// One job in this worker's schema.
    Job(AddedJob),
    /// This many jobs in a schema of this database. Graphile's own functions do not name the schema.
    Somewhere(usize),
    /// No jobs for this worker: jobs of another schema, or none at all.
    Nothing,
}

/// A job that was announced alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddedJob {
    pub(super) id: i64,
    pub(super) task_identifier: String,
}

/// Reads the payload of `jobs:insert`. Other tools send other payloads, or none: then it may be any number of jobs.
pub(super) fn announced_jobs(payload: &str, schema: &str) -> Announced {
    let notice: Option<serde_json::Value> = serde_json::from_str(payload).ok();
    let member = |name: &str| notice.as_ref().and_then(|notice| notice.get(name));
    let count = member("count").and_then(serde_json::Value::as_i64).unwrap_or(MANY);
    let count = usize::try_from(count.min(MANY)).unwrap_or(0);
    let job = || {
        let task_identifier = member("task")?.as_str()?.to_owned();
        Some(AddedJob { id: member("id")?.as_i64()?, task_identifier })
    };
    match member("schema").and_then(serde_json::Value::as_str) {
        _ if count == 0 => Announced::Nothing,
        Some(name) if name == schema => match job().filter(|_| count == 1) {
            Some(job) => Announced::Job(job),
            None => Announced::Here(count),
        },
        Some(_) => Announced::Nothing,
        None => Announced::Somewhere(count),
    }
}

/// Whether the payload of `worker:migrate` announces a breaking revision that is newer than those this version knows.
/// It is a hint: the table `migrations` of our own schema has the facts.
pub(super) fn may_break_us(payload: &str) -> bool {
    let Ok(notice) = serde_json::from_str::<serde_json::Value>(payload) else { return false };
    let revision = notice.get("migrationNumber").and_then(serde_json::Value::as_i64);
    let is_breaking = notice.get("breaking").and_then(serde_json::Value::as_bool);
    is_breaking == Some(true) && revision > Some(i64::from(GRAPHILE_REVISION))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(payload: &str) -> Announced {
        announced_jobs(payload, "mine")
    }

    #[test]
    fn any_payload_announces_jobs_unless_its_count_is_below_one() {
        for payload in ["", "nonsense", "{}", "[]", "\u{0}", r#"{"count":"many"}"#, r#"{"schema":5}"#] {
            assert_eq!(announced(payload), Announced::Somewhere(1_000_000), "{payload:?}");
        }
        for payload in [r#"{"count":0}"#, r#"{"r":0.5,"count":-1}"#, r#"{"count":0,"schema":"mine"}"#] {
            assert_eq!(announced(payload), Announced::Nothing, "{payload:?}");
        }
        assert_eq!(announced(r#"{"r":0.5,"count":12}"#), Announced::Somewhere(12));
    }

    #[test]
    fn jobs_of_another_schema_are_not_announced() {
        assert_eq!(announced(r#"{"r":0.5,"count":12,"schema":"mine"}"#), Announced::Here(12));
        assert_eq!(announced(r#"{"schema":"mine"}"#), Announced::Here(1_000_000));
        for payload in [r#"{"r":0.5,"count":12,"schema":"Mine"}"#, r#"{"schema":""}"#] {
            assert_eq!(announced(payload), Announced::Nothing, "{payload:?}");
        }
    }

    #[test]
    fn a_single_job_is_announced_with_its_id_and_task() {
        let job = AddedJob { id: 7, task_identifier: "t".into() };
        assert_eq!(announced(r#"{"count":1,"schema":"mine","id":7,"task":"t"}"#), Announced::Job(job));
        for (payload, expected) in [
            (r#"{"count":2,"schema":"mine","id":7,"task":"t"}"#, Announced::Here(2)),
            (r#"{"count":1,"schema":"mine","id":7}"#, Announced::Here(1)),
            (r#"{"count":1,"schema":"mine","id":"7","task":"t"}"#, Announced::Here(1)),
            (r#"{"count":1,"schema":"mine","id":7,"task":["t"]}"#, Announced::Here(1)),
            (r#"{"count":1,"schema":"other","id":7,"task":"t"}"#, Announced::Nothing),
            (r#"{"count":1,"id":7,"task":"t"}"#, Announced::Somewhere(1)),
        ] {
            assert_eq!(announced(payload), expected, "{payload:?}");
        }
    }

    #[test]
    fn only_an_unknown_breaking_revision_is_worth_a_check() {
        assert!(may_break_us(r#"{"migrationNumber":21,"breaking":true}"#));
        for payload in
            [r#"{"migrationNumber":21,"breaking":false}"#, r#"{"migrationNumber":3,"breaking":true}"#, ""]
        {
            assert!(!may_break_us(payload), "{payload:?}");
        }
    }
}
