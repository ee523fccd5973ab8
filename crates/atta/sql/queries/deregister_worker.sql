-- Says that this worker has gone in good order. $1 its id. Locks its own row.
delete from {schema}._atta_workers as worker
where worker.id = $1::text
