-- The columns of a job that was claimed durably. The caller reads them by position. A payload whose stored size is more
-- than 2,000 bytes is returned as null, and read separately (read_payload.sql). The statement defines `task`.
job.id,
  case when pg_catalog.pg_column_size(job.payload) <= 2000 then job.payload end as payload,
  job.priority,
  least(greatest(job.run_at, timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31 00:00:00Z') as run_at,
  job.attempts,
  job.max_attempts,
  job.last_error,
  job.created_at,
  job.updated_at,
  job.key,
  job.revision,
  job.flags,
  job.task_id,
  (
    select task.identifier
    from task
    where task.id = job.task_id
  ) as task_identifier,
  job.job_queue_id,
  case when job.job_queue_id is not null then (
    select queue.queue_name
    from {schema}._private_job_queues as queue
    where queue.id = job.job_queue_id
  ) end as queue_name,
  job.locked_at
