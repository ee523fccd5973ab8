-- The workers that have registered and have not been declared dead, grouped by the tasks that they have. Returns a row
-- per group: its tasks, how many workers it has, and how many of them come before this worker in the order of their ids.
-- $1 the worker. Locks nothing. Reads the table of workers once.
select
  worker.task_identifiers,
  pg_catalog.count(*) as workers,
  pg_catalog.count(*) filter (where worker.id < $1::text) as before
from {schema}._atta_workers as worker
where worker.declared_dead_at is null
group by worker.task_identifiers
