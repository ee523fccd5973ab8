-- A job as JSON text. The statement names the row of the job `job`, and the row with its task and queue `names`. Times are
-- in UTC, whatever the time zone of the session is: offsets of old times have seconds, or move them before the year 1.
-- Times that chrono can't represent, such as infinity, become the nearest that it can.
pg_catalog.json_build_object(
    'id', job.id,
    'task_identifier', names.task_identifier,
    'task_id', job.task_id,
    'job_queue_id', job.job_queue_id,
    'queue_name', names.queue_name,
    'payload', job.payload,
    'priority', job.priority,
    'run_at', pg_catalog.to_char(
      least(greatest(pg_catalog.timezone('UTC', job.run_at), timestamp '0001-01-01'), timestamp '9999-12-31'),
      'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
    ),
    'attempts', job.attempts,
    'max_attempts', job.max_attempts,
    'last_error', job.last_error,
    'created_at', pg_catalog.to_char(
      least(greatest(pg_catalog.timezone('UTC', job.created_at), timestamp '0001-01-01'), timestamp '9999-12-31'),
      'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
    ),
    'updated_at', pg_catalog.to_char(
      least(greatest(pg_catalog.timezone('UTC', job.updated_at), timestamp '0001-01-01'), timestamp '9999-12-31'),
      'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
    ),
    'key', job.key,
    'locked_at', case when job.locked_at is not null then pg_catalog.to_char(
      least(greatest(pg_catalog.timezone('UTC', job.locked_at), timestamp '0001-01-01'), timestamp '9999-12-31'),
      'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
    ) end,
    'locked_by', job.locked_by,
    'revision', job.revision,
    'flags', job.flags
  )::text
