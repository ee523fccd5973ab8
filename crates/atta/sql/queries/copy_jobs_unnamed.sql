-- Inserts many jobs at once, in the binary format of COPY; the database assigns their ids. Locks nothing but the new
-- rows.
copy {schema}._private_jobs (job_queue_id, task_id, payload, priority, run_at, max_attempts, flags)
from stdin (format binary)
