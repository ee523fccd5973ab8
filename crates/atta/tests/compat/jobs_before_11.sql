-- All there is to know of the jobs of revisions 1 to 10. Columns of later ones read as what they would hold.
select jsonb_build_object(
  'id', job.id,
  'task', job.task_identifier,
  'queue', job.queue_name,
  'payload', job.payload::text,
  'priority', job.priority,
  'run_at', job.run_at,
  'attempts', job.attempts,
  'max_attempts', job.max_attempts,
  'last_error', job.last_error,
  'created_at', job.created_at,
  'updated_at', job.updated_at,
  'key', to_jsonb(job) ->> 'key',
  'locked_at', null,
  'locked_by', null,
  'revision', coalesce((to_jsonb(job) ->> 'revision')::integer, 0),
  'flags', nullif(to_jsonb(job) -> 'flags', 'null')
)::text
from graphile_worker.jobs as job
order by job.id
