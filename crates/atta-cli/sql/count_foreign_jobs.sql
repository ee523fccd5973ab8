-- How many jobs are not the benchmark's. Reads the whole table; takes no locks.
select pg_catalog.count(*)
from {schema}._private_jobs as job
where not exists (
  select 1
  from {schema}._private_tasks as task
  where task.id = job.task_id
    and task.identifier like 'atta\_bench\_%'
)
