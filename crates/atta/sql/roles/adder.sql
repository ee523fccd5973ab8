-- == the role that adds: no right on the tables at all, only functions under Graphile's names in a schema of their own,
-- == which run as the owner of the tables. Of a job that has the key already they tell when it is due and how it is
-- == counted, and nothing of what is in it.
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
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $atta$
  select
    job.id, job.job_queue_id, job.task_id, coalesce(add_job.payload, '{}'::json), job.priority, job.run_at,
    job.attempts, job.max_attempts, null::text, job.created_at, job.updated_at, job.key, null::timestamptz, null::text,
    job.revision, (select jsonb_object_agg(flag, true) from unnest(add_job.flags) as flag)
  from {schema}.add_job(
    add_job.identifier, add_job.payload, add_job.queue_name, add_job.run_at, add_job.max_attempts, add_job.job_key,
    add_job.priority, add_job.flags, add_job.job_key_mode
  ) as job;
$atta$;

create or replace function {add_schema}.add_jobs(
  specs {add_schema}.job_spec[],
  job_key_preserve_run_at boolean default false
)
returns setof {add_schema}.added_job
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $atta$
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
$atta$;

-- Nobody is given this one, since whoever knows a key can take the job away by it: grant it to those who should.
create or replace function {add_schema}.remove_job(job_key text)
returns {add_schema}.added_job
language sql
strict
volatile
security definer
set search_path = pg_catalog, pg_temp
as $atta$
  select
    job.id, job.job_queue_id, job.task_id, null::json, job.priority, job.run_at, job.attempts, job.max_attempts,
    null::text, job.created_at, job.updated_at, job.key, null::timestamptz, null::text, job.revision, null::jsonb
  from {schema}.remove_job(remove_job.job_key) as job
  where job.id is not null;
$atta$;

-- Graphile Worker looks at this before it adds, and would install everything here if it did not find it.
create or replace view {add_schema}.migrations as
select migration.id, migration.ts, migration.breaking
from {schema}.migrations as migration;

revoke all on schema {add_schema} from public;
revoke all on all functions in schema {add_schema} from public;
grant usage on schema {add_schema} to {adder};
grant select on {add_schema}.migrations to {adder};
grant execute on function {add_schema}.add_job(
  text, json, text, timestamptz, integer, text, integer, text[], text
) to {adder};
grant execute on function {add_schema}.add_jobs({add_schema}.job_spec[], boolean) to {adder};

commit;
