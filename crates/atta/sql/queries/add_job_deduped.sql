-- Adds one job in the mode unsafe_dedupe by the SQL function, and returns the job that then has the key, as JSON text:
-- it may have another task or queue than the one that was to be added.
-- $1 the job as a JSON object, its payload as a string that contains JSON: see add_job.sql.
-- Locks and indexes: those of the function. Rows that the function creates are not yet visible to this statement, so a
-- name that is not found is the requested one.
select
  {job_json}
from pg_catalog.json_to_record($1::text::json) as spec (
  identifier text,
  payload text,
  queue_name text,
  run_at timestamptz,
  run_in float8,
  max_attempts integer,
  job_key text,
  priority integer,
  flags text[],
  job_key_mode text
)
cross join lateral {schema}.add_job(
  spec.identifier, spec.payload::json, spec.queue_name,
  coalesce(spec.run_at, pg_catalog.now() + pg_catalog.make_interval(secs => spec.run_in)), spec.max_attempts,
  spec.job_key, spec.priority, spec.flags, spec.job_key_mode
) as job
cross join lateral (
  select
    coalesce(
      (select task.identifier from {schema}._private_tasks as task where task.id = job.task_id),
      spec.identifier
    ) as task_identifier,
    case when job.job_queue_id is not null then coalesce(
      (select queue.queue_name from {schema}._private_job_queues as queue where queue.id = job.job_queue_id),
      spec.queue_name
    ) end as queue_name
) as names
