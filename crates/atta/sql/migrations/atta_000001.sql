-- The first of our own revisions. Also puts back what was dropped of it.
insert into {schema}._atta_migrations (id, breaking) values (1, false) on conflict do nothing;

-- The workers that are alive, by their own word: who, where, since when, and when last heard of.
create table if not exists {schema}._atta_workers (
  id text not null,
  host text not null,
  pid integer not null,
  version text not null,
  started_at timestamptz not null default now(),
  heartbeat_at timestamptz not null default now(),
  task_identifiers text[] not null,
  slots integer not null,
  primary key (id)
);
alter table {schema}._atta_workers enable row level security;

-- Workers that died without a word, and when that was found: two within five minutes put the fleet under suspicion.
create table if not exists {schema}._atta_deaths (
  worker_id text not null,
  found_at timestamptz not null default now(),
  primary key (worker_id)
);
alter table {schema}._atta_deaths enable row level security;

-- Finds the jobs of a task, the most urgent first, without those that are due later. The condition spells out what
-- is_available stands for, so that statements which spell it out as well can't be planned along Graphile's own indexes. Jobs
-- with flags have an index of their own: those that are forbidden to a worker are not in the way of the others.
create index if not exists _atta_jobs_task_index
  on {schema}._private_jobs (task_id, priority, run_at, id)
  where locked_at is null and attempts < max_attempts and job_queue_id is null and flags is null;
create index if not exists _atta_jobs_flagged_index
  on {schema}._private_jobs (task_id, priority, run_at, id)
  where locked_at is null and attempts < max_attempts and job_queue_id is null and flags is not null;

-- Finds the first job of each queue without walking over all the others.
create index if not exists _atta_jobs_queue_index
  on {schema}._private_jobs (job_queue_id, priority, run_at, id)
  include (task_id)
  where is_available = true and job_queue_id is not null;
