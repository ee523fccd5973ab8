-- Declares stale workers dead, each once, and records it. Returns their ids.
-- $1 this worker, $2 for how many seconds its own heartbeats have been continuous, $3 its own threshold in seconds, $4
-- the time of its last heartbeat that was answered.
-- A worker is stale by the threshold in its own row. While no worker can send heartbeats, because the server or the
-- network is down, all of them look stale. Therefore this worker's own continuous heartbeats, and the time since the
-- start of the server, must both cover the time that this worker waits. A gap of up to half of its own threshold still
-- counts as continuous, and it takes up to half of the other's threshold until the other has certainly sent a heartbeat
-- again. If its own threshold is the longer one, it therefore waits for the sum of these halves.
-- The clock of the server may be set. After a step forward all workers look stale, this one too: it declares nobody
-- dead unless its own last heartbeat is recent. Its next heartbeat finds the step, and its heartbeats count as
-- continuous only from then on. Between the arrival of that heartbeat and its answer, the worker does not know of the
-- step: it declares nobody dead while its row has another heartbeat than the last that was answered. After a step back,
-- the last heartbeat of a dead worker lies in the future: that counts as old, too.
-- Locks the rows of stale workers, and skips those that others have locked; reads the tables of workers and deaths.
with stale as (
  select worker.id
  from {schema}._atta_workers as worker
  where worker.id <> $1::text
    and worker.declared_dead_at is null
    and least(
      pg_catalog.abs(extract(epoch from pg_catalog.clock_timestamp() - worker.heartbeat_at)::float8),
      $2::float8,
      extract(epoch from pg_catalog.clock_timestamp() - pg_catalog.pg_postmaster_start_time())::float8
    ) > greatest(
      extract(epoch from worker.recovery_threshold)::float8,
      (extract(epoch from worker.recovery_threshold)::float8 + $3::float8) / 2::float8
    )
    and exists (
      select
      from {schema}._atta_workers as own
      where own.id = $1::text
        and own.heartbeat_at = $4::timestamptz
        and pg_catalog.abs(extract(epoch from pg_catalog.clock_timestamp() - own.heartbeat_at)::float8)
          <= $3::float8 / 2::float8
    )
  for update of worker skip locked
), dead as (
  update {schema}._atta_workers as worker
  set declared_dead_at = pg_catalog.clock_timestamp()
  from stale
  where worker.id = stale.id
  returning worker.id, worker.recovery_threshold
), counted as (
  insert into {schema}._atta_dead_workers (worker_id, recovery_threshold)
  select dead.id, dead.recovery_threshold
  from dead
  on conflict (worker_id) do update set found_at = pg_catalog.now(), recovery_threshold = excluded.recovery_threshold
), forgotten as (
  delete from {schema}._atta_dead_workers as death
  where death.found_at < pg_catalog.now() - interval '1 day'
    and death.worker_id not in (select dead.id from dead)
)
select dead.id as worker_id
from dead
