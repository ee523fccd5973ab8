-- Picks due jobs without a queue that have flags, and holds them by row locks until the transaction ends. Writes
-- nothing.
-- Levels of the pick, as arrays with an entry per level, the most urgent first: $1 task identifier, $2 priority, $3 and
-- $4 the run_at (null: before every time) and id after which to start, $5 the largest number of jobs. $6 the time, or
-- null for the database's; $7 the number of jobs in all; $8 to $10 only jobs before this priority, run_at (null: after
-- every time) and id; $11 forbidden flags: jobs that have one of them are skipped.
-- Returns attempts with the new one counted. A payload that takes more than 2,000 bytes in storage is null, and read
-- separately (read_payload.sql). The last columns are the number of the level and the place of the row. The caller
-- reads columns by position.
-- Locks the jobs that it returns and skips those that are locked; never waits. Walks _atta_jobs_flagged_index, in each
-- level from its start to the present; levels after the one that fills the pick are not read.
with level as materialized (
  select
    level.number, task.id as task_id, level.priority, coalesce(level.run_at, '-infinity') as run_at, level.id, level.most,
    case
      when level.priority = $8::smallint then least($9::timestamptz, coalesce($6::timestamptz, pg_catalog.now()))
      else coalesce($6::timestamptz, pg_catalog.now())
    end as until,
    case
      when level.priority = $8::smallint and $9::timestamptz <= coalesce($6::timestamptz, pg_catalog.now()) then $10::bigint
      else 9223372036854775807
    end as until_id
  from unnest($1::text[], $2::smallint[], $3::timestamptz[], $4::bigint[], $5::bigint[]) with ordinality
    as level (task_identifier, priority, run_at, id, most, number)
  join {schema}._private_tasks as task on task.identifier = level.task_identifier
  order by level.number
)
select
  job.id,
  case when pg_catalog.pg_column_size(job.payload) <= 2000 then job.payload end as payload,
  job.priority,
  least(greatest(job.run_at, timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31 00:00:00Z') as run_at,
  (job.attempts + 1)::smallint as attempts,
  job.max_attempts,
  job.last_error,
  job.created_at,
  job.updated_at,
  job.key,
  job.revision,
  job.flags,
  level.task_id,
  level.number::integer as level_number,
  job.ctid
from level
cross join lateral (
  select
    job.id, job.payload, job.priority, job.run_at, job.attempts, job.max_attempts, job.last_error, job.created_at,
    job.updated_at, job.key, job.revision, job.flags, job.ctid
  from {schema}._private_jobs as job
  -- The meaning of is_available, spelt out as in the index, so that no other index can be chosen.
  where job.locked_at is null
    and job.attempts < job.max_attempts
    and job.job_queue_id is null
    and job.flags is not null
    and (job.flags ?| $11::text[]) is not true
    and job.task_id = level.task_id
    and job.priority = level.priority
    and (job.run_at, job.id) > (level.run_at, level.id)
    and job.run_at <= level.until
    and (job.run_at, job.id) < (level.until, level.until_id)
  order by job.run_at, job.id
  limit level.most
  for update skip locked
) as job
limit $7::bigint
