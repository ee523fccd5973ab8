-- Adds many jobs by the SQL function, and gives them back as JSON text, in the order of the list.
-- $1 an object: jobs, an array of objects whose payloads keep their text, and preserve_run_at, a boolean.
-- Locks and indexes: those of the function. The names are the caller's: it knows them by the order.
select
  {job_json}
from {schema}.add_jobs(
  array(select json_populate_recordset(null::{schema}.job_spec, ($1::text::json) -> 'jobs')),
  (($1::text::json) ->> 'preserve_run_at')::boolean
) with ordinality as job
cross join (select null::text as task_identifier, null::text as queue_name) as names
order by job.ordinality
