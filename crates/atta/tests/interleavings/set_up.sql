-- What the harness adds to a database: the log of changes, and the gate that pauses a statement. Not part of the product.
set timezone = 'UTC';
alter table graphile_worker._private_jobs set (autovacuum_enabled = false);
alter table graphile_worker._private_job_queues set (autovacuum_enabled = false);
alter table graphile_worker._private_tasks set (autovacuum_enabled = false);

create unlogged table public.change (
  seq bigint generated always as identity,
  pid integer not null,
  query text not null,
  now bigint not null,
  is_job boolean not null,
  old jsonb,
  new jsonb
);

create function public.plain(given jsonb) returns jsonb as $$
  select given || jsonb_build_object(
    'locked_at', (extract(epoch from (given ->> 'locked_at')::timestamptz) * 1000000)::bigint,
    'run_at', (extract(epoch from (given ->> 'run_at')::timestamptz) * 1000000)::bigint
  )
$$ language sql stable;

create function public.log_change() returns trigger as $$
begin
  insert into public.change (pid, query, now, is_job, old, new)
  values (
    pg_backend_pid(),
    current_query(),
    (extract(epoch from now()) * 1000000)::bigint,
    tg_table_name = '_private_jobs',
    case when tg_op <> 'INSERT' then to_jsonb(old) end,
    case when tg_op <> 'DELETE' then to_jsonb(new) end
  );
  return null;
end
$$ language plpgsql;

-- A closed gate opens for the rest of the session's statements, and waits for the lock that the gatekeeper has.
create function public.gate() returns trigger as $$
declare
  gate constant text := current_setting('inter.gate', true);
begin
  if gate <> '' then
    perform set_config('inter.gate', '', false);
    perform pg_advisory_xact_lock_shared(gate::bigint);
  end if;
  return null;
end
$$ language plpgsql;

create trigger log_change after insert or update or delete on graphile_worker._private_jobs
  for each row execute function public.log_change();
create trigger log_change after insert or update or delete on graphile_worker._private_job_queues
  for each row execute function public.log_change();
create trigger gate before insert or update or delete on graphile_worker._private_jobs
  for each statement execute function public.gate();
create trigger gate before insert or update or delete on graphile_worker._private_job_queues
  for each statement execute function public.gate();
create trigger gate before insert or update or delete on graphile_worker._private_tasks
  for each statement execute function public.gate();
create trigger gate before insert or update or delete on graphile_worker._atta_workers
  for each statement execute function public.gate();
