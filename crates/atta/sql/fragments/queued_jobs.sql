-- Jobs that may run now or later and are in a queue, with or without flags: see plain_jobs.sql. The index is
-- _atta_jobs_queued_index.
from {schema}._private_jobs as job
where job.locked_at is null
  and job.attempts < job.max_attempts
  and job.job_queue_id is not null
