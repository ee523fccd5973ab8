-- The first of our own revisions. Also puts back what was dropped of it.
insert into {schema}._atta_migrations (id, breaking) values (1, false) on conflict do nothing;

-- The registered workers: who and where they are, their last heartbeat, and how long they may go without one. A worker that
-- was declared dead keeps its row until nothing that it had locked is left to recover.
create table if not exists {schema}._atta_workers (
  id text not null,
  host text not null,
  pid integer not null,
  version text not null,
  started_at timestamptz not null default now(),
  heartbeat_at timestamptz not null default now(),
  task_identifiers text[] not null,
  slots integer not null,
  recovery_threshold interval not null default interval '30 seconds',
  declared_dead_at timestamptz,
  primary key (id)
);
alter table {schema}._atta_workers enable row level security;

-- Workers that were declared dead, and when: two within five minutes put the fleet under suspicion.
create table if not exists {schema}._atta_deaths (
  worker_id text not null,
  found_at timestamptz not null default now(),
  recovery_threshold interval not null default interval '30 seconds',
  primary key (worker_id)
);
alter table {schema}._atta_deaths enable row level security;

-- How often a job's worker died while it had the job, and the last of those workers in words. Not an attempt: a job that
-- never failed is not retired by deploys that kill workers.
create table if not exists {schema}._atta_crashes (
  job_id bigint not null,
  crashes integer not null,
  crashed_workers text[] not null,
  last_crashed_at timestamptz not null default now(),
  primary key (job_id)
);
alter table {schema}._atta_crashes enable row level security;

-- The jobs of one task in their order: claims and polls read what they can use, and nothing that is due later or belongs to
-- other tasks. The condition spells out what is_available stands for, so that statements which spell it out as well can't be
-- planned along Graphile's own indexes.
create index if not exists _atta_jobs_task_index
  on {schema}._private_jobs (task_id, priority, run_at, id)
  where locked_at is null and attempts < max_attempts and job_queue_id is null and flags is null;

-- The same for jobs with flags: those that are forbidden to a worker are not in the way of the others.
create index if not exists _atta_jobs_flagged_index
  on {schema}._private_jobs (task_id, priority, run_at, id)
  where locked_at is null and attempts < max_attempts and job_queue_id is null and flags is not null;

-- Finds the first job of each queue without walking over all the others.
create index if not exists _atta_jobs_queue_index
  on {schema}._private_jobs (job_queue_id, priority, run_at, id)
  include (task_id)
  where is_available = true and job_queue_id is not null;

-- The same for jobs in queues. A poll finds by it when the next of them is due without visiting every queue.
create index if not exists _atta_jobs_queued_index
  on {schema}._private_jobs (task_id, priority, run_at, id)
  where locked_at is null and attempts < max_attempts and job_queue_id is not null;

-- What a worker has locked: recovery reads locked jobs and no others.
create index if not exists _atta_jobs_locked_index
  on {schema}._private_jobs (locked_by, job_queue_id)
  where locked_at is not null;
