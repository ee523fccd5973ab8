-- Graphile's stable view of the jobs, without their payloads.
create view {schema}.jobs as
select
  job.id,
  queue.queue_name,
  task.identifier as task_identifier,
  job.priority,
  job.run_at,
  job.attempts,
  job.max_attempts,
  job.last_error,
  job.created_at,
  job.updated_at,
  job.key,
  job.locked_at,
  job.locked_by,
  job.revision,
  job.flags
from {schema}._private_jobs as job
join {schema}._private_tasks as task on task.id = job.task_id
left join {schema}._private_job_queues as queue on queue.id = job.job_queue_id;
