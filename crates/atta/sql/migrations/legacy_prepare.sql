-- From revisions 1 to 10, first part: adds the columns of later revisions to the old table of jobs, and drops the old
-- functions. A running job must not be moved while its worker runs it: if there is one, the migration fails and changes
-- nothing.
lock table {schema}.jobs, {schema}.job_queues in access exclusive mode;

alter table {schema}.jobs add column if not exists key text;
alter table {schema}.jobs add column if not exists locked_at timestamptz;
alter table {schema}.jobs add column if not exists locked_by text;
alter table {schema}.jobs add column if not exists revision integer not null default 0;
alter table {schema}.jobs add column if not exists flags jsonb;

do $atta$
declare
  -- Revision 1 kept a running job's lock in its queue only.
  running bigint := (
    select pg_catalog.count(*)
    from {schema}.jobs as job
    left join {schema}.job_queues as queue on queue.queue_name = job.queue_name
    where job.locked_at > pg_catalog.now() - interval '4 hours'
      or (queue.locked_at > pg_catalog.now() - interval '4 hours' and queue.locked_by is not null)
  );
begin
  if running > 0 then
    raise exception using
      errcode = 'object_in_use',
      message = pg_catalog.format('%s jobs are locked by workers, or wait for a locked job of their queue', running),
      hint = 'Stop all workers of the old version, let them finish, and migrate again. '
        'If they are gone already, free what they held: clear locked_at and locked_by in jobs and job_queues.';
  end if;
end
$atta$;

-- Drops all of the old functions, after the triggers that use them.
do $atta$
declare
  old record;
begin
  for old in
    select pg_trigger.tgname, pg_trigger.tgrelid::regclass as relation
    from pg_trigger
    where pg_trigger.tgrelid in (
        select pg_class.oid
        from pg_class
        join pg_namespace on pg_namespace.oid = pg_class.relnamespace
        where pg_namespace.nspname = {schema_text}
          and pg_class.relname in ('jobs', 'job_queues')
      )
      and not pg_trigger.tgisinternal
      and pg_trigger.tgfoid in (
        select pg_proc.oid
        from pg_proc
        join pg_namespace on pg_namespace.oid = pg_proc.pronamespace
        where pg_namespace.nspname = {schema_text}
      )
  loop
    execute pg_catalog.format('drop trigger %I on %s', old.tgname, old.relation);
  end loop;
  for old in
    select pg_proc.oid::regprocedure as signature
    from pg_proc
    join pg_namespace on pg_namespace.oid = pg_proc.pronamespace
    where pg_namespace.nspname = {schema_text}
      and (
        pg_proc.prorettype = (
          select pg_class.reltype
          from pg_class
          where pg_class.relnamespace = pg_namespace.oid and pg_class.relname = 'jobs'
        )
        or pg_proc.proname in (
          'jobs__decrease_job_queue_count', 'jobs__increase_job_queue_count',
          'tg__update_timestamp', 'tg_jobs__notify_new_jobs'
        )
      )
  loop
    execute pg_catalog.format('drop function %s', old.signature);
  end loop;
end
$atta$;

alter table if exists {schema}.known_crontabs rename to _private_known_crontabs;
