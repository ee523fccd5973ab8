-- Deletes the jobs that have no attempts left. No parameters. Locks those rows; reads the whole table.
delete from {schema}._private_jobs as job
where job.attempts >= job.max_attempts
  and job.locked_at is null
