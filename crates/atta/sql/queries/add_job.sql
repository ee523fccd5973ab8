-- Adds one job by the SQL function, and gives it back as JSON text. Not for the mode unsafe_dedupe where the tables can be
-- read: see add_job_deduped.sql.
-- $1 the job as a JSON object. Its payload is a string with JSON in it, and so keeps its text: what is taken out of JSON
-- as JSON may have neither \u0000 nor half of a surrogate pair anywhere in it.
-- Locks and indexes: those of the function. The names are those that were asked for: a job that had the key has them now.
-- Needs no right on the tables, if the function does not.
select
  {job_json}
from pg_catalog.json_to_record($1::text::json) as spec (
  identifier text,
  payload text,
  queue_name text,
  run_at timestamptz,
  max_attempts integer,
  job_key text,
  priority integer,
  flags text[],
  job_key_mode text
)
cross join lateral {schema}.add_job(
  spec.identifier, spec.payload::json, spec.queue_name, spec.run_at, spec.max_attempts,
  spec.job_key, spec.priority, spec.flags, spec.job_key_mode
) as job
cross join lateral (
  select spec.identifier as task_identifier, spec.queue_name
) as names
