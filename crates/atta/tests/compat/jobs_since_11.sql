-- All there is to know of the jobs of revisions from 11 on. The prefix of the tables' names came with 16.
select jsonb_build_object(
  'id', job.id,
  'task', task.identifier,
  'queue', queue.queue_name,
  'payload', job.payload::text,
  'priority', job.priority,
  'run_at', job.run_at,
  'attempts', job.attempts,
  'max_attempts', job.max_attempts,
  'last_error', job.last_error,
  'created_at', job.created_at,
  'updated_at', job.updated_at,
  'key', job.key,
  'locked_at', job.locked_at,
  'locked_by', job.locked_by,
  'revision', job.revision,
  'flags', job.flags
)::text
from graphile_worker.{prefix}jobs as job
left join graphile_worker.{prefix}tasks as task on task.id = job.task_id
left join graphile_worker.{prefix}job_queues as queue on queue.id = job.job_queue_id
order by job.id
