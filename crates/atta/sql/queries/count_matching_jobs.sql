-- The number of jobs that match a filter, as text.
-- $1 the filter as a JSON object, as in list_jobs.sql; the limit does not count. Locks nothing; reads the whole table.
select pg_catalog.count(*)::text
from pg_catalog.json_to_record($1::text::json) as filter (
  {job_filter}
)
cross join {schema}._private_jobs as job
join {schema}._private_tasks as task on task.id = job.task_id
left join {schema}._private_job_queues as queue on queue.id = job.job_queue_id
cross join lateral (
  select {job_state} as name
) as state
where {job_matches}
