-- Registers this worker, or registers it again after it was declared dead, or after its row was lost.
-- $1 its id, $2 host, $3 process, $4 version, $5 task identifiers, $6 slots, $7 its recovery threshold in seconds.
-- Returns when the server was started, the time that was recorded, and whether this worker was declared dead within the
-- last day. Locks the worker's own row; primary key of the table of deaths.
insert into {schema}._atta_workers as worker (
  id, host, pid, version, heartbeat_at, task_identifiers, slots, recovery_threshold
)
values (
  $1::text, $2::text, $3::integer, $4::text, pg_catalog.clock_timestamp(), $5::text[], $6::integer,
  $7::float8 * interval '1 second'
)
on conflict (id) do update set
  heartbeat_at = excluded.heartbeat_at,
  declared_dead_at = null
returning
  pg_catalog.pg_postmaster_start_time() as server_started_at,
  worker.heartbeat_at as server_now,
  exists (
    select
    from {schema}._atta_dead_workers as death
    where death.worker_id = $1::text
  ) as was_declared_dead
