-- Jobs that may run now or later and have flags and no queue: see plain_jobs.sql. The index is
-- _atta_jobs_flagged_index.
from {schema}._private_jobs as job
where job.locked_at is null
  and job.attempts < job.max_attempts
  and job.job_queue_id is null
  and job.flags is not null
