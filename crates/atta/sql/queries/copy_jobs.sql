-- Inserts many jobs at once, with given ids, in the binary format of COPY. Locks nothing but the new rows.
copy {schema}._private_jobs (id, job_queue_id, task_id, payload, priority, run_at, max_attempts, flags)
from stdin (format binary)
