-- Deletes the rows of dead workers that no longer have anything locked. No parameters.
-- Locks those rows, and skips those that others have locked; _atta_jobs_locked_index, and one scan of the queues.
with free as (
  select worker.id
  from {schema}._atta_workers as worker
  where worker.declared_dead_at is not null
    and worker.id <> all (array(
      select distinct job.locked_by
      from {schema}._private_jobs as job
      where job.locked_at is not null
        and job.locked_by is not null
    ))
    and worker.id <> all (array(
      select queue.locked_by
      from {schema}._private_job_queues as queue
      where queue.locked_at is not null
        and queue.locked_by is not null
    ))
  for update skip locked
)
delete from {schema}._atta_workers as worker
using free
where worker.id = free.id
