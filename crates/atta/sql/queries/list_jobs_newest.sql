-- A page of jobs, newest first: each as JSON text, and its state. $1 the filter as a JSON object, as in list_jobs.sql;
-- after_id is the last id of the page before, so this page has lower ids. Locks nothing; walks the primary key
-- downwards from after_id until the page is full.
select
  {job_json},
  state.name
from pg_catalog.json_to_record($1::text::json) as filter (
  {job_filter}
)
cross join {schema}._private_jobs as job
join {schema}._private_tasks as task on task.id = job.task_id
left join {schema}._private_job_queues as queue on queue.id = job.job_queue_id
cross join lateral (
  select task.identifier as task_identifier, queue.queue_name
) as names
cross join lateral (
  select {job_state} as name
) as state
where job.id < coalesce((($1::text::json) ->> 'after_id'::text)::bigint, 9223372036854775807)
  and (select {job_matches})
order by job.id desc
limit (select (($1::text::json) ->> 'limit'::text)::bigint)
