-- == the producer role: no privileges on the tables at all, only on functions with Graphile's names in a separate
-- == schema, which run as the owner of the tables. If a job with the key exists already, they return when it is due,
-- == its attempts and its revision, but none of its content.
do $atta$
begin
  if to_regtype('{add_schema_in_text}.job_spec') is null then
    create type {add_schema}.job_spec as (
      identifier text,
      payload json,
      queue_name text,
      run_at timestamptz,
      max_attempts smallint,
      job_key text,
      priority smallint,
      flags text[]
    );
  end if;
  if to_regtype('{add_schema_in_text}.added_job') is null then
    create type {add_schema}.added_job as (
      id bigint,
      job_queue_id integer,
      task_id integer,
      payload json,
      priority smallint,
      run_at timestamptz,
      attempts smallint,
      max_attempts smallint,
      last_error text,
      created_at timestamptz,
      updated_at timestamptz,
      key text,
      locked_at timestamptz,
      locked_by text,
      revision integer,
      flags jsonb
    );
  end if;
end
$atta$;

-- An error that the producer role gets has a code, a message and a hint, and nothing that quotes stored values or the
-- owner's statements: neither a detail nor the context of the statement that failed. The owner finds those in the
-- server's log. Therefore each function below ends with the same handler. It passes on code, message and hint if the
-- functions of the schema themselves raised them, or a trigger by a plain RAISE, or if the server did and its message
-- contains no value (time limits, locks, serialization). Client messages are off meanwhile; otherwise that role could
-- get the log lines by client_min_messages.
create or replace function {add_schema}.add_job(
  identifier text,
  payload json default null,
  queue_name text default null,
  run_at timestamptz default null,
  max_attempts integer default null,
  job_key text default null,
  priority integer default null,
  flags text[] default null,
  job_key_mode text default 'replace'
)
returns {add_schema}.added_job
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set client_min_messages = error
as $atta$
declare
  v_job {schema}._private_jobs;
  v_flags jsonb;
  {handler_variables}
begin
  -- An expression without FROM costs least.
  v_job := {schema}.add_job(
    add_job.identifier, add_job.payload, add_job.queue_name, add_job.run_at, add_job.max_attempts, add_job.job_key,
    add_job.priority, add_job.flags, add_job.job_key_mode
  );
  if add_job.flags is not null then
    v_flags := (select jsonb_object_agg(flag, true) from unnest(add_job.flags) as flag);
  end if;
  return row(
    v_job.id, v_job.job_queue_id, v_job.task_id, coalesce(add_job.payload, '{}'::json), v_job.priority, v_job.run_at,
    v_job.attempts, v_job.max_attempts, null::text, v_job.created_at, v_job.updated_at, v_job.key, null::timestamptz,
    null::text, v_job.revision, v_flags
  )::{add_schema}.added_job;
{handler}
end
$atta$;

create or replace function {add_schema}.add_jobs(
  specs {add_schema}.job_spec[],
  job_key_preserve_run_at boolean default false
)
returns setof {add_schema}.added_job
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set client_min_messages = error
as $atta$
declare
  {handler_variables}
begin
  return query
    select
      job.id, job.job_queue_id, job.task_id, coalesce(given.payload, '{}'::json), job.priority, job.run_at, job.attempts,
      job.max_attempts, null::text, job.created_at, job.updated_at, job.key, null::timestamptz, null::text, job.revision,
      job.flags
    from {schema}.add_jobs(
      array(
        select row(
          spec.identifier, spec.payload, spec.queue_name, spec.run_at, spec.max_attempts, spec.job_key, spec.priority,
          spec.flags
        )::{schema}.job_spec
        from unnest(add_jobs.specs) with ordinality as spec
        order by spec.ordinality
      ),
      add_jobs.job_key_preserve_run_at
    ) with ordinality as job (
      id, job_queue_id, task_id, payload, priority, run_at, attempts, max_attempts, last_error, created_at, updated_at, key,
      locked_at, locked_by, revision, flags, is_available, place
    )
    join unnest(add_jobs.specs) with ordinality as given on given.ordinality = job.place
    order by job.place;
{handler}
end
$atta$;

-- This function is granted to nobody, since everybody who knows a key could remove its job: grant it to roles that
-- should.
create or replace function {add_schema}.remove_job(job_key text)
returns {add_schema}.added_job
language plpgsql
strict
volatile
security definer
set search_path = pg_catalog, pg_temp
set client_min_messages = error
as $atta$
declare
  v_job {schema}._private_jobs;
  {handler_variables}
begin
  v_job := {schema}.remove_job(remove_job.job_key);
  if v_job.id is null then
    return null;
  end if;
  return row(
    v_job.id, v_job.job_queue_id, v_job.task_id, null::json, v_job.priority, v_job.run_at, v_job.attempts,
    v_job.max_attempts, null::text, v_job.created_at, v_job.updated_at, v_job.key, null::timestamptz, null::text,
    v_job.revision, null::jsonb
  )::{add_schema}.added_job;
{handler}
end
$atta$;

-- Graphile Worker reads this before it adds, and would install its whole schema here if it did not find it.
create or replace view {add_schema}.migrations as
select migration.id, migration.ts, migration.breaking
from {schema}.migrations as migration;

revoke all on schema {add_schema} from public;
revoke all on all functions in schema {add_schema} from public;
grant usage on schema {add_schema} to {producer};
grant select on {add_schema}.migrations to {producer};
grant execute on function {add_schema}.add_job(
  text, json, text, timestamptz, integer, text, integer, text[], text
) to {producer};
grant execute on function {add_schema}.add_jobs({add_schema}.job_spec[], boolean) to {producer};

commit;
