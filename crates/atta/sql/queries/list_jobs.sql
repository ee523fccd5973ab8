-- A page of jobs in the order of their ids, as JSON text.
-- $1 the filter as a JSON object; what is left out, or null, filters nothing. Locks nothing; walks the primary key.
select
  {job_json}
from json_to_record($1::text::json) as filter (
  ids bigint[],
  states text[],
  task_identifier text,
  queue_name text,
  key text,
  error_contains text,
  created_before timestamptz,
  after_id bigint,
  "limit" integer
)
cross join {schema}._private_jobs as job
join {schema}._private_tasks as task on task.id = job.task_id
left join {schema}._private_job_queues as queue on queue.id = job.job_queue_id
cross join lateral (
  select task.identifier as task_identifier, queue.queue_name
) as names
cross join lateral (
  select case
    when job.locked_at is not null then 'running'
    when job.attempts >= job.max_attempts then 'failed'
    when job.run_at > now() and job.attempts > 0 then 'retrying'
    when job.run_at > now() then 'scheduled'
    when queue.locked_at is not null then 'waiting'
    else 'ready'
  end as name
) as state
where (filter.ids is null or job.id = any (filter.ids))
  and (filter.states is null or state.name = any (filter.states))
  and (filter.task_identifier is null or task.identifier = filter.task_identifier)
  and (filter.queue_name is null or queue.queue_name = filter.queue_name)
  and (filter.key is null or job.key = filter.key)
  and (filter.error_contains is null or position(filter.error_contains in job.last_error) > 0)
  and (filter.created_before is null or job.created_at < filter.created_before)
  and (filter.after_id is null or job.id > filter.after_id)
order by job.id
limit (select (($1::text::json) ->> 'limit')::integer)
