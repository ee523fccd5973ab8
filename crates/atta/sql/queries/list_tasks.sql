-- A page of tasks in the order of their identifiers, including those that only a worker knows: how many workers know
-- each, and its number of jobs per state. As JSON text.
-- $1 an object: after_identifier (the last of the page before, or null) and limit.
-- Locks nothing; tasks_identifier_key, and one pass over the table of jobs.
with known as (
  select task.identifier
  from {schema}._private_tasks as task
  union
  select pg_catalog.unnest(worker.task_identifiers)
  from {schema}._atta_workers as worker
), page as (
  select known.identifier
  from known
  where known.identifier >= coalesce(($1::text::json) ->> 'after_identifier'::text, '')
    and known.identifier is distinct from ($1::text::json) ->> 'after_identifier'::text
  order by known.identifier
  limit (select (($1::text::json) ->> 'limit'::text)::bigint)
)
select pg_catalog.json_build_object(
    'task_identifier', page.identifier,
    'workers', (
      select pg_catalog.count(*)
      from {schema}._atta_workers as worker
      where page.identifier = any (worker.task_identifiers)
    ),
    'oldest_due_at', pg_catalog.to_char(
      pg_catalog.min(greatest(pg_catalog.timezone('UTC', job.run_at), timestamp '0001-01-01'))
        filter (where job.id is not null and state.name in ('ready', 'waiting')),
      'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
    ),
    {job_counts}
  )::text
from page
left join {schema}._private_tasks as task on task.identifier = page.identifier
left join {schema}._private_jobs as job on job.task_id = task.id
left join {schema}._private_job_queues as queue on queue.id = job.job_queue_id
cross join lateral (
  select {job_state} as name
) as state
group by page.identifier
order by page.identifier
