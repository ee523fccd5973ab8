-- A page of jobs in the order of their ids: each as JSON text, and its state.
-- $1 the filter as a JSON object; members that are missing or null do not filter. Locks nothing; walks the primary key
-- from after_id on until the page is full. For keys and ids, list_jobs_by_key.sql and list_jobs_by_ids.sql are used.
-- The conditions are in a subquery, because the planner expects half of the jobs to match a subquery. So it walks the
-- index and stops. Otherwise it would expect almost no matches, read the whole table and sort.
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
where job.id > coalesce((($1::text::json) ->> 'after_id'::text)::bigint, 0)
  and (select {job_matches})
order by job.id
limit (select (($1::text::json) ->> 'limit'::text)::bigint)
