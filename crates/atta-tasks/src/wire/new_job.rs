//! The jobs that a host asks the worker to add.

use atta::{JobKeyMode, JobSpec};
use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// A job that a host wants to add.
pub(crate) struct NewJob {
    pub(crate) identifier: String,
    pub(crate) payload: Box<RawValue>,
    pub(crate) spec: JobSpec,
}

/// Decodes the jobs of a call.
pub(crate) fn jobs_to_add(jobs: &RawValue, preserve_run_at: bool) -> Result<Vec<NewJob>, String> {
    let jobs: Vec<&RawValue> =
        serde_json::from_str(jobs.get()).map_err(|_| "the jobs to add must be an array".to_owned())?;
    let decoded = jobs.into_iter().map(|job| to_new_job(job, preserve_run_at));
    decoded.collect::<Result<_, _>>().map_err(|error| format!("invalid job: {error}"))
}

/// A job to add, with JavaScript's names or SQL's. An error of a member has to name it, so each is decoded separately.
#[derive(Deserialize)]
struct Members<'a> {
    #[serde(borrow)]
    identifier: Option<&'a RawValue>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    #[serde(borrow, alias = "queueName")]
    queue_name: Option<&'a RawValue>,
    #[serde(borrow, alias = "runAt")]
    run_at: Option<&'a RawValue>,
    #[serde(borrow, alias = "maxAttempts")]
    max_attempts: Option<&'a RawValue>,
    #[serde(borrow, alias = "jobKey")]
    job_key: Option<&'a RawValue>,
    #[serde(borrow, alias = "jobKeyMode")]
    job_key_mode: Option<&'a RawValue>,
    #[serde(borrow)]
    priority: Option<&'a RawValue>,
    #[serde(borrow)]
    flags: Option<&'a RawValue>,
}

fn to_new_job(job: &RawValue, preserve_run_at: bool) -> Result<NewJob, String> {
    if !job.get().starts_with('{') {
        return Err(format!("not an object: {}", job.get().chars().take(50).collect::<String>()));
    }
    let members: Members = serde_json::from_str(job.get()).map_err(without_place)?;
    let job_key: Option<String> = member("job_key", members.job_key)?;
    let job_key_mode = member("job_key_mode", members.job_key_mode)?;
    let keeps_time = preserve_run_at && job_key.is_some();
    let spec = JobSpec {
        queue_name: member("queue_name", members.queue_name)?,
        run_at: member::<DateTime<Utc>>("run_at", members.run_at)?,
        max_attempts: member("max_attempts", members.max_attempts)?,
        job_key,
        job_key_mode: if keeps_time { Some(JobKeyMode::PreserveRunAt) } else { job_key_mode },
        priority: member("priority", members.priority)?,
        flags: member("flags", members.flags)?,
        ..JobSpec::default()
    };
    let identifier = member("identifier", members.identifier)?.ok_or("identifier is missing")?;
    let payload = match members.payload {
        Some(payload) => payload.to_owned(),
        None => RawValue::from_string("{}".into()).expect("this is JSON"),
    };
    Ok(NewJob { identifier, payload, spec })
}

/// A member of a job; none if it is missing or null.
fn member<T: DeserializeOwned>(name: &str, value: Option<&RawValue>) -> Result<Option<T>, String> {
    let Some(value) = value else { return Ok(None) };
    serde_json::from_str(value.get()).map_err(|error| format!("{name}: {}", without_place(error)))
}

/// The text of an error without the position, which means nothing to the task that has called a helper.
fn without_place(error: serde_json::Error) -> String {
    let text = error.to_string();
    text.split_once(" at line ").map_or(text.as_str(), |(text, _)| text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).expect("JSON")
    }

    #[test]
    fn jobs_are_added_under_names_of_javascript_or_sql() {
        let both = raw(r#"[{"identifier":"a","queueName":"q","runAt":"2026-01-01T00:00:00.000Z"},
                           {"identifier":"b","payload":[1],"queue_name":"q","priority":3}]"#);
        let jobs = jobs_to_add(&both, false).expect("both are valid");
        let queues: Vec<_> = jobs.iter().map(|job| job.spec.queue_name.as_deref()).collect();
        assert_eq!(queues, [Some("q"), Some("q")]);
        assert_eq!((jobs[0].payload.get(), jobs[1].payload.get()), ("{}", "[1]"));
        let error = jobs_to_add(&raw(r#"[{"identifier":"a","priority":100000}]"#), false).err();
        assert!(error.as_deref().is_some_and(|error| error.starts_with("invalid job: ")), "{error:?}");
    }

    #[test]
    fn preserve_run_at_applies_to_jobs_with_a_key() {
        let both = raw(r#"[{"identifier":"a","job_key":"k"},{"identifier":"b"}]"#);
        let modes = |preserve| -> Vec<Option<JobKeyMode>> {
            let jobs = jobs_to_add(&both, preserve).expect("both are valid");
            jobs.into_iter().map(|job| job.spec.job_key_mode).collect()
        };
        assert_eq!(modes(true), [Some(JobKeyMode::PreserveRunAt), None]);
        assert_eq!(modes(false), [None, None]);
    }
}
