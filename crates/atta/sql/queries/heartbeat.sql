-- Records a heartbeat. $1 the worker.
-- Returns when the server was started, and the time that was recorded. Returns no row if the worker is not registered
-- or was declared dead: it must then register again. Locks the worker's own row; primary key. Nothing else belongs in
-- this statement: it must never wait.
update {schema}._atta_workers as worker
set heartbeat_at = pg_catalog.clock_timestamp()
where worker.id = $1::text
  and worker.declared_dead_at is null
returning
  pg_catalog.pg_postmaster_start_time() as server_started_at,
  worker.heartbeat_at as server_now
