-- Says that this worker is alive, and who it is.
-- $1 its id, $2 host, $3 process, $4 version, $5 task identifiers, $6 slots. Locks its own row.
insert into {schema}._atta_workers (id, host, pid, version, task_identifiers, slots)
values ($1::text, $2::text, $3::integer, $4::text, $5::text[], $6::integer)
on conflict (id) do update set heartbeat_at = now()
