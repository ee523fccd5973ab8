-- What the Rust crate graphile_worker adds to a schema at Graphile's revision 18, as far as others can see it. The
-- names and signatures are its own; the bodies are stand-ins, since all that counts is that they are not ours.
insert into graphile_worker.migrations (id, breaking) values (19, false), (20, false), (21, false), (22, false);

create table graphile_worker._private_workers (
  id text primary key,
  last_heartbeat_at timestamptz not null,
  started_at timestamptz not null default now(),
  metadata jsonb
);

create table graphile_worker._private_job_retirements (
  id bigint primary key references graphile_worker._private_jobs (id) on delete cascade
);

create function graphile_worker.worker_heartbeat(worker_id text, metadata json default null) returns void
language sql as $$
  insert into graphile_worker._private_workers (id, last_heartbeat_at) values (worker_id, now())
  on conflict (id) do update set last_heartbeat_at = excluded.last_heartbeat_at;
$$;

create function graphile_worker.worker_deregister(worker_id text) returns void
language sql as $$ delete from graphile_worker._private_workers where id = worker_id; $$;

create function graphile_worker.list_stale_workers(stale_threshold interval) returns table (worker_id text)
language sql as $$
  select id from graphile_worker._private_workers where last_heartbeat_at < now() - stale_threshold;
$$;

create function graphile_worker.list_orphan_locked_workers(stale_threshold interval) returns table (worker_id text)
language sql as $$
  select distinct locked_by from graphile_worker._private_jobs where locked_at < now() - stale_threshold;
$$;

create function graphile_worker.recover_dead_worker_jobs(
  worker_ids text[], recovery_delay interval default '0'
) returns integer
language sql as $$ select 0; $$;

create function graphile_worker.delete_stale_workers(worker_ids text[]) returns void
language sql as $$ delete from graphile_worker._private_workers where id = any (worker_ids); $$;

create or replace function graphile_worker.reschedule_jobs(
  job_ids bigint[],
  run_at timestamptz default null,
  priority integer default null,
  attempts integer default null,
  max_attempts integer default null
) returns setof graphile_worker._private_jobs
language plpgsql as $$ begin return; end $$;

create or replace function graphile_worker.add_jobs(
  specs graphile_worker.job_spec[],
  job_key_preserve_run_at boolean default false
) returns setof graphile_worker._private_jobs
language plpgsql as $$ begin return; end $$;

create or replace function graphile_worker.add_job(
  identifier text,
  payload json default null,
  queue_name text default null,
  run_at timestamptz default null,
  max_attempts integer default null,
  job_key text default null,
  priority integer default null,
  flags text[] default null,
  job_key_mode text default 'replace'
) returns graphile_worker._private_jobs
language plpgsql as $$ begin return null; end $$;

insert into graphile_worker._private_workers (id, last_heartbeat_at) values ('a worker of the crate', now());
