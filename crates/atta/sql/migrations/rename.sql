-- From revisions 11 to 15: the tables are the newest ones under their older, public names.
-- The old functions are dropped, since their results or arguments have other types; the new ones follow.
do $atta$
declare
  old record;
begin
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
          'jobs__decrease_job_queue_count', 'jobs__increase_job_queue_count', 'tg__update_timestamp'
        )
      )
  loop
    execute pg_catalog.format('drop function %s', old.signature);
  end loop;
end
$atta$;

alter table {schema}.jobs rename to _private_jobs;
alter table {schema}.job_queues rename to _private_job_queues;
alter table {schema}.tasks rename to _private_tasks;
alter table {schema}.known_crontabs rename to _private_known_crontabs;
alter type {schema}.job_spec alter attribute max_attempts type smallint;
alter type {schema}.job_spec alter attribute priority type smallint;
