-- The first of our own revisions. Also creates again those of its tables that were dropped. Its indexes are in the
-- folder indexes.
insert into {schema}._atta_migrations (id, breaking) values (1, false) on conflict do nothing;

-- The registered workers: their ids, where they run, their last heartbeats, and how long they may go without one. A
-- worker that was declared dead keeps its row until all of its locks are recovered.
create table if not exists {schema}._atta_workers (
  id text not null,
  host text not null,
  pid integer not null,
  version text not null,
  started_at timestamptz not null default pg_catalog.now(),
  heartbeat_at timestamptz not null default pg_catalog.now(),
  task_identifiers text[] not null,
  slots integer not null,
  recovery_threshold interval not null default interval '30 seconds',
  declared_dead_at timestamptz,
  primary key (id)
);
alter table {schema}._atta_workers enable row level security;

-- Workers that were declared dead, and when. After two within five minutes, workers hold no jobs.
create table if not exists {schema}._atta_dead_workers (
  worker_id text not null,
  found_at timestamptz not null default pg_catalog.now(),
  recovery_threshold interval not null default interval '30 seconds',
  primary key (worker_id)
);
alter table {schema}._atta_dead_workers enable row level security;

-- How often a worker died while it had a job, and a description of the last of those workers. This is not an attempt: a
-- job that never failed must not use up its attempts because deployments kill workers.
create table if not exists {schema}._atta_crashes (
  job_id bigint not null,
  crashes integer not null,
  crashed_workers text[] not null,
  last_crashed_at timestamptz not null default pg_catalog.now(),
  primary key (job_id)
);
alter table {schema}._atta_crashes enable row level security;
