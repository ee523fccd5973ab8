-- Completes jobs that are not running, and returns them as JSON text.
-- $1 the arguments as a JSON object. Locks and indexes: those of the function.
select
  {job_json}
from pg_catalog.json_to_record($1::text::json) as argument (job_ids bigint[])
cross join lateral {schema}.complete_jobs(argument.job_ids) as job
cross join lateral (
  select
    (select task.identifier from {schema}._private_tasks as task where task.id = job.task_id) as task_identifier,
    (select queue.queue_name from {schema}._private_job_queues as queue where queue.id = job.job_queue_id)
      as queue_name
) as names
where job.id is not null
order by job.id
