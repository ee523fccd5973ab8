-- Adds many jobs by the SQL function, and returns them as JSON text, in the order of the list.
-- $1 an object: jobs, an array of objects as in add_job.sql, and preserve_run_at, a boolean.
-- Locks and indexes: those of the function. Does not return names: the caller knows them by the order.
select
  {job_json}
from {schema}.add_jobs(
  array(
    select row(
        spec.identifier, spec.payload::json, spec.queue_name,
        coalesce(spec.run_at, pg_catalog.now() + pg_catalog.make_interval(secs => spec.run_in)), spec.max_attempts,
        spec.job_key, spec.priority, spec.flags
      )::{schema}.job_spec
    from rows from (
      pg_catalog.json_to_recordset(($1::text::json) -> 'jobs'::text) as (
        identifier text,
        payload text,
        queue_name text,
        run_at timestamptz,
        run_in float8,
        max_attempts smallint,
        job_key text,
        priority smallint,
        flags text[]
      )
    ) with ordinality as spec (
      identifier, payload, queue_name, run_at, run_in, max_attempts, job_key, priority, flags, position
    )
    order by spec.position
  ),
  (($1::text::json) ->> 'preserve_run_at'::text)::boolean
) with ordinality as job
cross join (select null::text as task_identifier, null::text as queue_name) as names
order by job.ordinality
