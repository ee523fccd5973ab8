-- Deletes the jobs that have no attempts left. $1 is not used. Locks those rows; reads the whole table.
delete from {schema}._private_jobs as job
where job.attempts >= job.max_attempts
  and job.locked_at is null
  and $1::text[] is not null
