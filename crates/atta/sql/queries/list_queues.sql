-- A page of queues in the order of their names: who has each, and how many jobs of it are in which state. As JSON text.
-- $1 an object: after_name (the last of the page before, or null) and limit.
-- Locks nothing; job_queues_queue_name_key for the page, and one pass over the table of jobs.
with page as (
  select queue.id, queue.queue_name, queue.locked_at, queue.locked_by
  from {schema}._private_job_queues as queue
  where queue.queue_name > coalesce(($1::text::json) ->> 'after_name', '')
  order by queue.queue_name
  limit (select (($1::text::json) ->> 'limit')::integer)
)
select json_build_object(
    'queue_name', queue.queue_name,
    'locked_at', queue.locked_at,
    'locked_by', queue.locked_by,
    'oldest_due_at', min(greatest(job.run_at, timestamptz '0001-01-01 00:00:00Z'))
      filter (where job.id is not null and state.name in ('ready', 'waiting')),
    {job_counts}
  )::text
from page as queue
left join {schema}._private_jobs as job on job.job_queue_id = queue.id
cross join lateral (
  select {job_state} as name
) as state
group by queue.queue_name, queue.locked_at, queue.locked_by
order by queue.queue_name
