-- Deregisters a worker that has released everything. $1 its id. Locks its own row.
-- A worker that was declared dead stays until others have recovered what it had locked.
delete from {schema}._atta_workers as worker
where worker.id = $1::text
  and worker.declared_dead_at is null
