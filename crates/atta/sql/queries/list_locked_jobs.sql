-- list_jobs.sql for a filter that only jobs with a lock can match: finds them by _atta_jobs_locked_index, and then by the
-- primary key. $1 the filter as a JSON object. Locks nothing.
select
  {job_json},
  state.name
from pg_catalog.json_to_record($1::text::json) as filter (
  {job_filter}
)
join {schema}._private_jobs as job on job.id = any (array(
  select locked.id
  from {schema}._private_jobs as locked
  where locked.locked_at is not null
))
join {schema}._private_tasks as task on task.id = job.task_id
left join {schema}._private_job_queues as queue on queue.id = job.job_queue_id
cross join lateral (
  select task.identifier as task_identifier, queue.queue_name
) as names
cross join lateral (
  select {job_state} as name
) as state
where (select {job_matches})
order by case when filter.newest_first then ~job.id else job.id end
limit (select (($1::text::json) ->> 'limit'::text)::bigint)
