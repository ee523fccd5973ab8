//! Checks of values that PostgreSQL would refuse with a message that names no field. They are rejected here, before
//! anything is sent, with a hint.

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::Value;

use super::RawJobSpec;
use crate::job::{FIRST_TIME, LAST_TIME, after};
use crate::{Error, JobSpec, RescheduleJobOptions, Result};

/// The same limit as in `add_jobs.sql`.
const LONGEST_FLAGS: usize = 65_536;

/// The same limits as in `add_jobs.sql`.
const LONGEST_NAME: usize = 128;
const LONGEST_KEY: usize = 512;

impl JobSpec {
    /// Checks the limits of a job of this task, without a connection. Returns an error if the database would refuse the
    /// job, whatever its payload is. Adding a job checks it in any case; this finds the mistakes of many jobs before the
    /// first one is added.
    ///
    /// ```
    /// use atta::JobSpec;
    ///
    /// let error = JobSpec::builder().max_attempts(0).build().check("send_email").unwrap_err();
    /// assert_eq!(error.message(), "invalid job: invalid max_attempts: 0");
    /// ```
    pub fn check(&self, task_identifier: &str) -> Result<()> {
        let doing = "invalid job";
        check_spec(doing, task_identifier, self)?;
        check_length(doing, "identifier", task_identifier, LONGEST_NAME)?;
        check_length(doing, "queue_name", self.queue_name.as_deref().unwrap_or_default(), LONGEST_NAME)?;
        check_length(doing, "job_key", self.job_key.as_deref().unwrap_or_default(), LONGEST_KEY)?;
        if self.job_key.as_deref() == Some("") {
            return Err(Error::invalid_input(format!("{doing}: job_key is empty"))
                .with_hint("a job key has 1 to 512 characters; for a job without a key, leave it out"));
        }
        match self.max_attempts {
            Some(count @ ..=0) => {
                Err(Error::invalid_input(format!("{doing}: invalid max_attempts: {count}"))
                    .with_hint("at least 1 attempt is needed, at most 32767 are allowed"))
            }
            _ => Ok(()),
        }
    }
}

/// Checks a job's texts and its time. The SQL functions check the rest, and refuse it with their own codes.
pub(super) fn check_job(job: &RawJobSpec) -> Result<()> {
    check_spec("adding a job", &job.identifier, &job.spec)
}

fn check_spec(doing: &str, identifier: &str, spec: &JobSpec) -> Result<()> {
    check_text(doing, "identifier", identifier)?;
    check_optional_text(doing, "queue_name", spec.queue_name.as_deref())?;
    check_optional_text(doing, "job_key", spec.job_key.as_deref())?;
    spec.flags.iter().flatten().try_for_each(|flag| check_text(doing, "flags", flag))?;
    let bytes: usize = spec.flags.iter().flatten().map(String::len).sum();
    if bytes > LONGEST_FLAGS {
        return Err(Error::invalid_input(format!("{doing}: the flags are too long: {bytes} bytes"))
            .with_hint(
                "a job may have at most 65,536 bytes of flags, because workers read the flags of every job",
            ));
    }
    check_time(doing, "run_at", spec.run_at)?;
    check_delay(doing, spec)
}

fn check_length(doing: &str, name: &str, text: &str, longest: usize) -> Result<()> {
    let length = text.chars().count();
    if length <= longest {
        return Ok(());
    }
    Err(Error::invalid_input(format!(
        "{doing}: {name} is too long: {length} characters ({:?}...)",
        shortened(text)
    ))
    .with_hint(format!("at most {longest} characters are allowed")))
}

fn check_delay(doing: &str, spec: &JobSpec) -> Result<()> {
    let Some(delay) = spec.run_in else { return Ok(()) };
    if spec.run_at.is_some() {
        return Err(Error::invalid_input(format!("{doing}: both run_at and run_in are given"))
            .with_hint("give one of them"));
    }
    if after(Utc::now(), delay) >= LAST_TIME {
        return Err(Error::invalid_input(format!("{doing}: invalid run_in: {} s", delay.as_secs()))
            .with_hint("it must end before the year 10000"));
    }
    Ok(())
}

pub(super) fn check_rescheduling(options: &RescheduleJobOptions) -> Result<()> {
    let doing = "rescheduling jobs";
    if let Some(max_attempts) = options.max_attempts.filter(|count| *count < 1) {
        return Err(Error::invalid_input(format!("{doing}: invalid max_attempts: {max_attempts}"))
            .with_hint("at least 1 attempt is needed"));
    }
    check_time(doing, "run_at", options.run_at)
}

/// Checks every text in a JSON argument. An error gives the name of the member that contains it.
pub(super) fn check_argument(doing: &str, name: &str, argument: &Value) -> Result<()> {
    match argument {
        Value::String(text) => check_text(doing, name, text),
        Value::Array(items) => items.iter().try_for_each(|item| check_argument(doing, name, item)),
        Value::Object(members) => {
            members.iter().try_for_each(|(name, value)| check_argument(doing, name, value))
        }
        _ => Ok(()),
    }
}

pub(super) fn check_text(doing: &str, name: &str, text: &str) -> Result<()> {
    if !text.contains('\0') {
        return Ok(());
    }
    Err(Error::invalid_input(format!("{doing}: {name} contains a NUL character: {:?}", shortened(text)))
        .with_hint("PostgreSQL can't store this character in text; remove it"))
}

fn check_optional_text(doing: &str, name: &str, text: Option<&str>) -> Result<()> {
    text.map_or(Ok(()), |text| check_text(doing, name, text))
}

fn check_time(doing: &str, name: &str, time: Option<DateTime<Utc>>) -> Result<()> {
    let Some(time) = time.filter(|time| !(FIRST_TIME..=LAST_TIME).contains(time)) else { return Ok(()) };
    let exact = |time: DateTime<Utc>| time.to_rfc3339_opts(SecondsFormat::AutoSi, true);
    let (given, first, last) = (exact(time), exact(FIRST_TIME), exact(LAST_TIME));
    Err(Error::invalid_input(format!("{doing}: invalid {name}: {given}"))
        .with_hint(format!("it must be between {first} and {last}")))
}

/// The start of a text, enough to recognize it.
fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::JobSpec;

    #[test]
    fn a_nul_is_refused_by_the_name_of_its_field() {
        let spec = |spec: JobSpec| RawJobSpec::new("t", (), spec).unwrap();
        let nul = || "a\0b".to_owned();
        let wrong = [
            (RawJobSpec::new(nul(), (), JobSpec::default()).unwrap(), "identifier"),
            (spec(JobSpec { queue_name: Some(nul()), ..JobSpec::default() }), "queue_name"),
            (spec(JobSpec { job_key: Some(nul()), ..JobSpec::default() }), "job_key"),
            (spec(JobSpec { flags: Some(vec!["a".into(), nul()]), ..JobSpec::default() }), "flags"),
        ];
        for (job, field) in wrong {
            let error = check_job(&job).unwrap_err();
            assert!(
                error.is_invalid_input() && error.message().contains(field) && error.hint().is_some(),
                "{error}"
            );
        }
        let argument = json!({ "limit": 5, "names": ["a", "b\0"] });
        assert!(check_argument("listing", "", &argument).unwrap_err().message().contains("names"));
        assert!(check_argument("listing", "", &json!({ "key": "k", "ids": [1], "x": null })).is_ok());
    }

    #[test]
    fn a_time_beyond_the_limits_is_rejected_with_the_limits() {
        let at = |time| check_time("adding a job", "run_at", Some(time));
        assert!(at(FIRST_TIME).is_ok() && at(LAST_TIME).is_ok());
        for time in [DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC] {
            let error = at(time).unwrap_err();
            assert!(error.message().contains("run_at"), "{error}");
            let hint = error.hint().unwrap_or_default();
            assert!(hint.contains("0001-01-01T00:00:00Z") && hint.contains("9999-12-31T00:00:00Z"), "{hint}");
        }
    }
}
