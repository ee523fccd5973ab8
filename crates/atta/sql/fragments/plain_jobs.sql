-- Jobs that may run now or later and have neither a queue nor flags: `from` and the beginning of `where`. The
-- conditions are those of _atta_jobs_task_index, spelled out, so that PostgreSQL can use no other index for them.
from {schema}._private_jobs as job
where job.locked_at is null
  and job.attempts < job.max_attempts
  and job.job_queue_id is null
  and job.flags is null
