-- A page of queues in the order of their names: the worker that has locked each, and its number of jobs per state. As
-- JSON text. $1 an object: after_name (the last of the page before, or null) and limit.
-- Locks nothing; job_queues_queue_name_key for the page, and one pass over the table of jobs.
with page as (
  select queue.id, queue.queue_name, queue.locked_at, queue.locked_by
  from {schema}._private_job_queues as queue
  where queue.queue_name >= coalesce(($1::text::json) ->> 'after_name'::text, '')
    and queue.queue_name is distinct from ($1::text::json) ->> 'after_name'::text
  order by queue.queue_name
  limit (select (($1::text::json) ->> 'limit'::text)::bigint)
)
select pg_catalog.json_build_object(
    'queue_name', queue.queue_name,
    'locked_at', case when queue.locked_at is not null then pg_catalog.to_char(
      least(greatest(pg_catalog.timezone('UTC', queue.locked_at), timestamp '0001-01-01'), timestamp '9999-12-31'),
      'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
    ) end,
    'locked_by', queue.locked_by,
    'oldest_due_at', pg_catalog.to_char(
      pg_catalog.min(greatest(pg_catalog.timezone('UTC', job.run_at), timestamp '0001-01-01'))
        filter (where job.id is not null and state.name in ('ready', 'waiting')),
      'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
    ),
    {job_counts}
  )::text
from page as queue
left join {schema}._private_jobs as job on job.job_queue_id = queue.id
cross join lateral (
  select {job_state} as name
) as state
group by queue.queue_name, queue.locked_at, queue.locked_by
order by queue.queue_name
