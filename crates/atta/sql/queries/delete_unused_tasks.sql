-- Deletes the tasks that have no jobs, under the lock of lock_tasks.sql. $1 the identifiers to keep. Reads all jobs
-- once.
delete from {schema}._private_tasks as task
where task.identifier <> all ($1::text[])
  and not exists (select from {schema}._private_jobs as job where job.task_id = task.id)
