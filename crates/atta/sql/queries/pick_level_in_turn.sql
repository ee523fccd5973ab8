-- Picks due jobs of one task and priority as pick_level.sql does, and begins where the last pick of any worker of the
-- fleet has ended, if that is further. Between take_scan_turn.sql and end_scan_turn.sql, so that the picks of several
-- workers do not meet: trying to lock a row that another one holds costs more than picking a free row.
-- Parameters, columns and locks of pick_level.sql. Moves the sequences at once, before the transaction ends.
with start as materialized (
  select
    task.id as task_id,
    task.id::bigint * 65536::bigint + $2::smallint::bigint + 32768::bigint as level,
    coalesce($3::timestamptz, timestamptz '-infinity') as run_at,
    $4::bigint as id
  from {schema}._private_tasks as task
  where task.identifier = $1::text
), shared as materialized (
  select
    timestamptz 'epoch' + time.last_value::float8 * interval '1 microsecond' as run_at,
    last_id.last_value as id
  from start
  cross join {schema}._atta_scan_level as level
  cross join {schema}._atta_scan_time as time
  cross join {schema}._atta_scan_id as last_id
  where level.last_value = start.level
    -- Jobs that are due later have other reasons to be found.
    and time.last_value <= (extract(epoch from pg_catalog.now())::float8 * 1000000::float8)::bigint
), begin as materialized (
  select
    start.task_id,
    start.level,
    case when (shared.run_at, shared.id) > (start.run_at, start.id) then shared.run_at else start.run_at end as run_at,
    case when (shared.run_at, shared.id) > (start.run_at, start.id) then shared.id else start.id end as id
  from start
  left join shared on true
), picked as materialized (
  select
    job.id,
    case when pg_catalog.pg_column_size(job.payload) <= 2000 then job.payload end as payload,
    job.run_at,
    (job.attempts + 1)::smallint as attempts,
    job.max_attempts,
    job.last_error,
    job.created_at,
    job.updated_at,
    job.key,
    job.revision,
    job.task_id,
    job.place,
    begin.level
  from begin
  cross join lateral (
    select
      job.id, job.payload, job.run_at, job.attempts, job.max_attempts, job.last_error, job.created_at, job.updated_at,
      job.key, job.revision, job.task_id, job.ctid as place
    from {schema}._private_jobs as job
    -- The meaning of is_available, spelt out as in the index, so that no other index can be chosen.
    where job.locked_at is null
      and job.attempts < job.max_attempts
      and job.job_queue_id is null
      and job.flags is null
      and job.task_id = begin.task_id
      and job.priority = $2::smallint
      and (job.run_at, job.id) > (begin.run_at, begin.id)
      and job.run_at <= coalesce($5::timestamptz, pg_catalog.now())
      and (job.run_at, job.id) < (coalesce($7::timestamptz, 'infinity'), $8::bigint)
    order by job.run_at, job.id
    limit $6::bigint
    for update skip locked
  ) as job
), moved as materialized (
  select
    pg_catalog.setval('{schema_in_text}._atta_scan_level'::regclass, last.level),
    pg_catalog.setval('{schema_in_text}._atta_scan_time'::regclass, last.micros),
    pg_catalog.setval('{schema_in_text}._atta_scan_id'::regclass, last.id)
  from (
    select
      picked.level,
      (extract(epoch from greatest(picked.run_at, timestamptz '0001-01-01 00:00:00Z'))::float8 * 1000000::float8)::bigint as micros,
      picked.id
    from picked
    order by picked.run_at desc, picked.id desc
    limit 1
  ) as last
)
select
  picked.id,
  picked.payload,
  null::smallint as priority,
  picked.run_at,
  picked.attempts,
  picked.max_attempts,
  picked.last_error,
  picked.created_at,
  picked.updated_at,
  picked.key,
  picked.revision,
  null::jsonb as flags,
  picked.task_id,
  null::integer as level_number,
  picked.place as ctid
from picked
where (select pg_catalog.count(*) from moved) >= 0::bigint
order by picked.run_at, picked.id
