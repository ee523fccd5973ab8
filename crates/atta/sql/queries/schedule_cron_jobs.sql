-- Adds the jobs of one minute of cron, each exactly once, no matter how many workers run this and how often. Returns
-- the identifiers of the items whose jobs it added. $1 a JSON array of items, $2 the minute, $3 their payloads. These
-- are separate, since values that are extracted from JSON must not contain \u0000 anywhere, and a payload may. The row
-- of an item in known_crontabs decides: only the transaction that moves its last_execution forward adds the job. Others
-- wait for the row, and then find the minute scheduled. Node's workers use the same rows, also in the order of the
-- list, so that two workers with one crontab never deadlock. Locks those rows, then what add_job locks;
-- known_crontabs_pkey.
with given as (
  select item.*
  from rows from (
    pg_catalog.json_to_recordset($1::text::json) as (
      identifier text,
      task_identifier text,
      queue_name text,
      max_attempts integer,
      job_key text,
      job_key_mode text,
      priority integer
    ),
    pg_catalog.unnest($3::text[])
  ) with ordinality as item (
    identifier, task_identifier, queue_name, max_attempts, job_key, job_key_mode, priority, payload, position
  )
), taken as (
  insert into {schema}._private_known_crontabs as known (identifier, known_since, last_execution)
  select given.identifier, $2::timestamptz, $2::timestamptz
  from given
  order by given.position
  on conflict (identifier) do update
    set last_execution = excluded.last_execution
    where known.last_execution is null
      or known.last_execution < excluded.last_execution
  returning known.identifier
), due as (
  select given.*
  from given
  join taken on taken.identifier = given.identifier
  order by given.position
)
select due.identifier
from due
cross join lateral {schema}.add_job(
  due.task_identifier,
  due.payload::json,
  due.queue_name,
  $2::timestamptz,
  due.max_attempts,
  due.job_key,
  due.priority,
  null::text[],
  coalesce(due.job_key_mode, 'replace')
) as job
