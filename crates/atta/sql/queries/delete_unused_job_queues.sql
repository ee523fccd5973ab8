-- Deletes the queues that have no jobs, under the lock of lock_job_queues.sql. No parameters. Reads all queued
-- jobs once.
delete from {schema}._private_job_queues as queue
where queue.locked_at is null
  and not exists (select from {schema}._private_jobs as job where job.job_queue_id = queue.id)
