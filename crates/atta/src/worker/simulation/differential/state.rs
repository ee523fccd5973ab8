//! All rows, in a form that both sides have.

use serde_json::Value;

/// How far times of the two sides may be apart, in seconds. A statement of the real side takes less than that.
pub(super) const TOLERANCE: f64 = 0.5;

/// A row: what must be equal, and its times in seconds.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) times: Vec<f64>,
}

impl Line {
    pub(super) fn new(text: String, times: impl IntoIterator<Item = f64>) -> Line {
        Line { text, times: times.into_iter().collect() }
    }

    pub(super) fn text(text: impl Into<String>) -> Line {
        Line { text: text.into(), times: Vec::new() }
    }

    fn is_same(&self, other: &Line) -> bool {
        let is_near = |(one, other): (&f64, &f64)| (one - other).abs() < TOLERANCE;
        self.text == other.text
            && self.times.len() == other.times.len()
            && self.times.iter().zip(&other.times).all(is_near)
    }
}

/// What differs between the lines of the model and the real ones.
pub(super) fn difference(model: &[Line], real: &[Line]) -> Option<String> {
    let is_same = model.len() == real.len() && model.iter().zip(real).all(|(one, other)| one.is_same(other));
    if is_same {
        return None;
    }
    let show = |line: &Line| format!("  {} {:.1?}", line.text, line.times);
    let lines = |lines: &[Line]| lines.iter().map(show).collect::<Vec<_>>().join("\n");
    Some(format!("the model has\n{}\nPostgreSQL has\n{}", lines(model), lines(real)))
}

/// All rows of the real side as JSON, with the time. Rows whose worker or job is gone are left out.
pub(super) const READ: &str = "
    select json_build_object(
      'now', extract(epoch from clock_timestamp()),
      'jobs', (
        select coalesce(json_agg(json_build_array(
          job.id, task.identifier, job.priority, job.attempts, job.max_attempts, job.key, job.revision,
          job.flags, job.job_queue_id, job.locked_by, coalesce(crash.crashes, 0),
          extract(epoch from job.run_at), extract(epoch from job.locked_at)
        ) order by job.id), '[]')
        from graphile_worker._private_jobs as job
        join graphile_worker._private_tasks as task on task.id = job.task_id
        left join graphile_worker._atta_crashes as crash on crash.job_id = job.id
      ),
      'queues', (
        select coalesce(json_agg(json_build_array(
          queue.id, queue.locked_by, extract(epoch from queue.locked_at)
        ) order by queue.id), '[]')
        from graphile_worker._private_job_queues as queue
        where queue.locked_at is not null
      ),
      'workers', (
        select coalesce(json_agg(json_build_array(
          worker.id, extract(epoch from worker.heartbeat_at), extract(epoch from worker.declared_dead_at)
        )), '[]')
        from graphile_worker._atta_workers as worker
      ),
      'deaths', (
        select coalesce(json_agg(json_build_array(death.worker_id, extract(epoch from death.found_at))), '[]')
        from graphile_worker._atta_dead_workers as death
      )
    )::text";

/// Moves all times into the past.
pub(super) fn advance(seconds: u32) -> String {
    let by = format!("interval '{seconds} seconds'");
    format!(
        "update graphile_worker._private_jobs set run_at = run_at - {by}, locked_at = locked_at - {by};
         update graphile_worker._private_job_queues set locked_at = locked_at - {by} where locked_at is not null;
         update graphile_worker._atta_workers
           set heartbeat_at = heartbeat_at - {by}, declared_dead_at = declared_dead_at - {by};
         update graphile_worker._atta_dead_workers set found_at = found_at - {by};"
    )
}

/// A trigger that refuses the claims of some jobs: none while its table is empty.
pub(super) const TRIGGER: &str = "
    create table public.refusing (divisor bigint);
    create function public.refuse() returns trigger language plpgsql as $$
    begin
      if exists (select from public.refusing where new.id % refusing.divisor = 0) then
        raise exception 'no';
      end if;
      return new;
    end $$;
    create trigger refuse before update on graphile_worker._private_jobs for each row
      when (old.locked_at is null and new.locked_at is not null) execute function public.refuse();";

/// Empties the tables.
pub(super) const RESET: &str = "
    delete from public.refusing;
    delete from graphile_worker._private_jobs;
    delete from graphile_worker._atta_workers;
    delete from graphile_worker._atta_dead_workers;
    delete from graphile_worker._atta_crashes;
    update graphile_worker._private_job_queues set locked_by = null, locked_at = null where locked_at is not null;
    select setval(pg_get_serial_sequence('graphile_worker._private_jobs', 'id'), 1, false);";

/// The elements of an array of the answer.
pub(super) fn rows<'a>(state: &'a Value, name: &str) -> impl Iterator<Item = &'a Vec<Value>> {
    state[name].as_array().into_iter().flatten().filter_map(Value::as_array)
}

/// The names of a job's flags.
pub(super) fn flags(flags: &Value) -> Vec<&str> {
    flags.as_object().into_iter().flat_map(|flags| flags.keys().map(String::as_str)).collect()
}
