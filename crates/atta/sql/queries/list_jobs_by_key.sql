-- list_jobs.sql for a filter with a key: finds it by jobs_key_key1. $1 the filter as a JSON object. Locks nothing.
select
  {job_json},
  state.name
from pg_catalog.json_to_record($1::text::json) as filter (
  {job_filter}
)
join {schema}._private_jobs as job on job.key = filter.key
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
