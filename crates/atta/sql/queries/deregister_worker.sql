-- Deregisters a worker that has released all its jobs. $1 its id. Locks its own row.
-- A worker that was declared dead stays registered until others have recovered its locks.
delete from {schema}._atta_workers as worker
where worker.id = $1::text
  and worker.declared_dead_at is null
