json_build_object(
    'id', job.id,
    'task_identifier', names.task_identifier,
    'job_queue_id', job.job_queue_id,
    'queue_name', names.queue_name,
    'payload', job.payload,
    'priority', job.priority,
    'run_at', least(greatest(job.run_at, timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31 00:00:00Z'),
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
