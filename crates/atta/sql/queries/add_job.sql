-- Adds one job by the SQL function, and returns it as JSON text. If the tables can be read, the mode unsafe_dedupe uses
-- add_job_deduped.sql instead.
-- $1 the job as a JSON object. Its payload is a string that contains JSON, so that its text is kept: JSON that is
-- extracted as JSON must not contain \u0000 or half of a surrogate pair anywhere. Its run_in, in seconds, counts from
-- now if it has no run_at.
-- Locks and indexes: those of the function. The task and queue names are the requested ones: an existing job with the
-- key has them now. Needs no privilege on the tables, if the function needs none.
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
  select spec.identifier as task_identifier, spec.queue_name
) as names
