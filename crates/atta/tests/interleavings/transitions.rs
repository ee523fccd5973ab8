//! Which changes of a row each statement may make.

use serde_json::Value;

use crate::statements::{elements, parse};
use crate::world::{Change, Row};

const FOUR_HOURS: i64 = 4 * 3600 * 1_000_000;

type Verdict = Result<(), &'static str>;

fn require(is_so: bool, what: &'static str) -> Verdict {
    if is_so { Ok(()) } else { Err(what) }
}

/// The error says which rule the change breaks.
pub(crate) fn check(change: &Change) -> Verdict {
    let Some((name, arguments)) = parse(&change.query) else {
        return Err("an unknown statement changed a row");
    };
    let call = Call { name, arguments: &arguments, now: change.now };
    match (change.is_job, &change.old, &change.new) {
        (true, None, Some(new)) => call.insert_of_a_job(new),
        (true, Some(old), None) => call.deletion_of_a_job(old),
        (true, Some(old), Some(new)) => call.update_of_a_job(old, new),
        (false, None, Some(new)) => {
            require(call.is_add() && new.locked_at.is_none(), "only adds create queues, and leave them free")
        }
        (false, Some(old), None) => require(
            name == "delete_unused_job_queues" && old.locked_at.is_none(),
            "only a clean-up deletes queues",
        ),
        (false, Some(old), Some(new)) => call.update_of_a_queue(old, new),
        (_, None, None) => Err("a change of nothing"),
    }
}

struct Call<'a> {
    name: &'a str,
    arguments: &'a [String],
    now: i64,
}

impl Call<'_> {
    fn is_add(&self) -> bool {
        matches!(self.name, "add_job" | "add_job_deduped" | "add_jobs" | "schedule_cron_jobs")
    }

    fn argument(&self, number: usize) -> &str {
        self.arguments.get(number).map_or("", String::as_str)
    }

    /// Whether the row is locked by the claim of a job that the arguments of a release name.
    fn has_claim(&self, row: &Row, list: usize) -> bool {
        let ids = elements(self.argument(list));
        let times = elements(self.argument(2));
        let has_claim = ids.iter().enumerate().any(|(place, id)| {
            // complete_claim.sql has one time for all.
            let time = if self.name == "complete_claim" { self.argument(2) } else { times[place] };
            id.parse() == Ok(row.id) && row.locked_at == Some(micros(time))
        });
        has_claim && row.locked_by.as_deref() == Some(self.argument(0))
    }

    fn insert_of_a_job(&self, new: &Row) -> Verdict {
        require(self.is_add(), "only adds create jobs")?;
        let is_new = new.attempts == 0 && new.revision == 0 && new.locked_at.is_none();
        require(is_new, "a new job is free")?;
        let has_key = |spec: &Spec| spec.key == new.key;
        require(specs(self.name, self.arguments).iter().any(has_key), "a new job has the key that was wanted")
    }

    fn deletion_of_a_job(&self, old: &Row) -> Verdict {
        match self.name {
            "complete_claimed" | "complete_claimed_queued" | "complete_many_claimed" | "complete_claim" => {
                require(self.has_claim(old, 1), "a release completes only jobs whose claims are valid")
            }
            "complete_held" => require(is_free(old), "only free jobs are held"),
            "delete_permafailed_jobs" => require(
                old.attempts >= old.max_attempts && old.locked_at.is_none(),
                "a clean-up deletes only failed jobs that are not running",
            ),
            "complete_jobs" => require(self.is_idle(old), "running jobs are skipped"),
            "remove_job" => {
                require(self.is_idle(old) && self.names_key(old), "a removal deletes only its own idle job")
            }
            _ => Err("this statement deletes no jobs"),
        }
    }

    fn update_of_a_job(&self, old: &Row, new: &Row) -> Verdict {
        let unlocked = Row { locked_at: None, locked_by: None, ..old.clone() };
        match self.name {
            "claim_by_job" | "claim_by_queue" | "claim_level" | "mark_claimed" | "promote_held" => {
                self.claim(old, new)
            }
            "promote_untouched" if old.locked_at.is_some() => {
                require(
                    old.locked_by.as_deref() == Some(self.argument(0)),
                    "the claim of another worker is taken",
                )?;
                require(*new == Row { locked_at: Some(self.now), ..old.clone() }, "a claim is only renewed")
            }
            "promote_untouched" => self.claim(old, new),
            "fail_held" => {
                require(is_free(old) && new.locked_at.is_none(), "only free jobs are held")?;
                require(new.attempts == old.attempts + 1, "a failure counts one attempt")
            }
            "postpone_held" => {
                require(*new == Row { run_at: new.run_at, ..old.clone() }, "only the time changes")
            }
            "fail_claimed" => {
                require(self.has_claim(old, 1), "a release fails only jobs whose claims are valid")?;
                let attempts = if elements(self.argument(8)).contains(&"true") {
                    old.max_attempts
                } else {
                    old.attempts
                };
                let failed = Row { attempts, run_at: new.run_at, last_error: Some("no".into()), ..unlocked };
                require(*new == failed, "a failure keeps its attempt and unlocks")
            }
            "return_claimed" => {
                require(self.has_claim(old, 1), "a release returns only jobs whose claims are valid")?;
                require(
                    *new == Row { attempts: (old.attempts - 1).max(0), ..unlocked },
                    "a return restores the attempt",
                )
            }
            "refresh_locks" => {
                require(
                    old.locked_by.as_deref() == Some(self.argument(0)),
                    "a worker refreshes only its own locks",
                )?;
                require(
                    *new == Row { locked_at: Some(self.now), ..old.clone() },
                    "only the time of the lock changes",
                )
            }
            "recover_workers" | "recover_function" => {
                require(self.is_of_dead_worker(old), "only jobs of dead workers are recovered")?;
                let attempts =
                    if self.argument(0) == "1" { old.max_attempts } else { (old.attempts - 1).max(0) };
                let freed =
                    Row { attempts, run_at: new.run_at, last_error: new.last_error.clone(), ..unlocked };
                require(*new == freed, "a recovery restores the attempt and unlocks")
            }
            "sweep_stale_locks" => {
                require(is_stale(old, self.now), "only locks of more than four hours are swept")?;
                require(*new == Row { run_at: new.run_at, ..unlocked }, "a sweep only unlocks")
            }
            "unlock_jobs" => require(old.locked_at.is_some() && *new == unlocked, "an unlock only unlocks"),
            "force_unlock_workers" => {
                let is_named =
                    old.locked_by.as_ref().is_some_and(|by| self.argument(0).contains(by.as_str()));
                require(is_named && *new == unlocked, "a forced unlock only unlocks jobs of its workers")
            }
            "permanently_fail_jobs" => {
                require(self.is_idle(old), "running jobs are skipped")?;
                let failed = Row { attempts: old.max_attempts, last_error: Some("no".into()), ..old.clone() };
                require(*new == failed, "a permanent failure uses up the attempts")
            }
            "reschedule_jobs" => {
                require(self.is_idle(old), "running jobs are skipped")?;
                require(*new == Row { priority: 1, ..old.clone() }, "only the priority changes")
            }
            "retry_jobs" => {
                require(self.is_idle(old), "running jobs are skipped")?;
                require(
                    *new == Row { attempts: 0, run_at: Some(self.now), ..old.clone() },
                    "a retry makes a job due",
                )
            }
            "remove_job" => {
                require(!self.is_idle(old) && self.names_key(old), "only a running job is kept")?;
                require(*new == given_up(old), "a removed job does not run again")
            }
            "add_job_deduped" => require(
                *new == Row { revision: old.revision + 1, ..old.clone() },
                "unsafe_dedupe changes nothing",
            ),
            _ if self.is_add() => self.keyed_add(old, new),
            _ => Err("this statement updates no jobs"),
        }
    }

    fn claim(&self, old: &Row, new: &Row) -> Verdict {
        require(is_free(old), "only free jobs are claimed")?;
        let claimed = Row {
            attempts: old.attempts + 1,
            locked_at: Some(self.now),
            locked_by: Some(self.argument(0).to_owned()),
            ..old.clone()
        };
        require(*new == claimed, "a claim counts one attempt and locks")
    }

    fn keyed_add(&self, old: &Row, new: &Row) -> Verdict {
        let specs = specs(self.name, self.arguments);
        let Some(spec) = specs.iter().find(|spec| spec.key.is_some() && spec.key == old.key) else {
            return Err("an add changes only jobs with its keys");
        };
        if !is_free(old) {
            return require(
                *new == given_up(old),
                "a running or failed job loses its key and does not run again",
            );
        }
        let is_replaced = new.key == old.key
            && new.revision == old.revision + 1
            && new.attempts == 0
            && new.locked_at.is_none()
            && new.payload == spec.payload;
        require(is_replaced, "a free job gets what was added")?;
        let keeps_time = spec.preserves_run_at && old.attempts == 0;
        require(
            keeps_time == (new.run_at == old.run_at) || self.name == "schedule_cron_jobs",
            "the mode decides about run_at",
        )
    }

    fn update_of_a_queue(&self, old: &Row, new: &Row) -> Verdict {
        let unlocked = Row { locked_at: None, locked_by: None, ..old.clone() };
        let worker = Some(self.argument(0).to_owned());
        let is_allowed = match self.name {
            "claim_by_job" | "claim_by_queue" | "mark_claimed" => {
                old.locked_at.is_none()
                    && *new == Row { locked_at: Some(self.now), locked_by: worker, ..old.clone() }
            }
            "refresh_locks" => {
                old.locked_by == worker && *new == Row { locked_at: Some(self.now), ..old.clone() }
            }
            "complete_claimed_queued" | "fail_claimed" | "return_claimed" => {
                self.has_claim(old, 3) && *new == unlocked
            }
            "recover_workers" | "recover_function" => self.is_of_dead_worker(old) && *new == unlocked,
            "sweep_stale_locks" => is_stale(old, self.now) && *new == unlocked,
            "unlock_jobs" | "force_unlock_workers" => *new == unlocked,
            _ => false,
        };
        require(is_allowed, "this statement may not change a queue like this")
    }

    fn is_idle(&self, row: &Row) -> bool {
        row.locked_at.is_none() || is_stale(row, self.now)
    }

    fn is_of_dead_worker(&self, row: &Row) -> bool {
        let dead: &[&str] =
            if self.name == "recover_function" { &["w0", "node"] } else { &["w0", "ws", "wx"] };
        row.locked_by.as_deref().is_some_and(|worker| dead.contains(&worker))
    }

    fn names_key(&self, row: &Row) -> bool {
        let argument: Value = serde_json::from_str(self.argument(0)).unwrap_or_default();
        row.key.is_some() && argument["job_key"].as_str() == row.key.as_deref()
    }
}

fn is_free(row: &Row) -> bool {
    row.locked_at.is_none() && row.attempts < row.max_attempts
}

fn is_stale(row: &Row, now: i64) -> bool {
    row.locked_at.is_some_and(|at| at < now - FOUR_HOURS)
}

fn given_up(old: &Row) -> Row {
    Row { key: None, attempts: old.max_attempts, ..old.clone() }
}

/// A job that an add was asked for.
pub(crate) struct Spec {
    pub(crate) key: Option<String>,
    payload: Value,
    preserves_run_at: bool,
}

/// The jobs that an add was asked for.
pub(crate) fn specs(name: &str, arguments: &[String]) -> Vec<Spec> {
    let argument: Value =
        serde_json::from_str(arguments.first().map_or("", String::as_str)).unwrap_or_default();
    let jobs = match name {
        "add_jobs" => argument["jobs"].as_array().cloned().unwrap_or_default(),
        "schedule_cron_jobs" => argument.as_array().cloned().unwrap_or_default(),
        _ => vec![argument.clone()],
    };
    let payload = |job: &Value| match (name, job["payload"].as_str()) {
        ("schedule_cron_jobs", _) => Value::from(1),
        (_, Some(text)) => serde_json::from_str(text).unwrap_or_default(),
        (_, None) => serde_json::json!({}),
    };
    let spec = |job: &Value| Spec {
        key: job["job_key"].as_str().map(str::to_owned),
        payload: payload(job),
        preserves_run_at: job["job_key_mode"] == "preserve_run_at" || argument["preserve_run_at"] == true,
    };
    jobs.iter().map(spec).collect()
}

/// A time as PostgreSQL writes it, in microseconds.
fn micros(text: &str) -> i64 {
    chrono::DateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S%.f%#z")
        .map_or(0, |time| time.timestamp_micros())
}
