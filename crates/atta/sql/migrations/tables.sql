-- Graphile's tables and type as of revision 20, for a schema without any, and for legacy_copy.sql.
-- The names that end in 1 are the ones that Graphile's own revisions produce.
create table {schema}._private_tasks (
  id integer not null generated always as identity (sequence name {schema}.tasks_id_seq),
  identifier text not null,
  constraint tasks_pkey primary key (id),
  constraint tasks_identifier_key unique (identifier),
  constraint tasks_identifier_check check (pg_catalog.length(identifier) <= 128)
);

create table {schema}._private_job_queues (
  id integer not null generated always as identity (sequence name {schema}.job_queues_id_seq),
  queue_name text not null,
  locked_at timestamptz,
  locked_by text,
  is_available boolean not null generated always as (locked_at is null) stored,
  constraint job_queues_pkey1 primary key (id),
  constraint job_queues_queue_name_key unique (queue_name),
  constraint job_queues_queue_name_check check (pg_catalog.length(queue_name) <= 128)
);

create table {schema}._private_jobs (
  id bigint not null generated always as identity (sequence name {schema}.jobs_id_seq1),
  job_queue_id integer,
  task_id integer not null,
  payload json not null default '{}'::json,
  priority smallint not null default 0,
  run_at timestamptz not null default pg_catalog.now(),
  attempts smallint not null default 0,
  max_attempts smallint not null default 25,
  last_error text,
  created_at timestamptz not null default pg_catalog.now(),
  updated_at timestamptz not null default pg_catalog.now(),
  key text,
  locked_at timestamptz,
  locked_by text,
  revision integer not null default 0,
  flags jsonb,
  is_available boolean not null generated always as (locked_at is null and attempts < max_attempts) stored,
  constraint jobs_pkey1 primary key (id),
  constraint jobs_key_key1 unique (key),
  constraint jobs_key_check check (pg_catalog.length(key) > 0 and pg_catalog.length(key) <= 512),
  constraint jobs_max_attempts_check check (max_attempts >= 1)
);

create index jobs_main_index
  on {schema}._private_jobs (priority, run_at)
  include (id, task_id, job_queue_id)
  where is_available = true;

create index jobs_no_queue_index
  on {schema}._private_jobs (priority, run_at)
  include (id, task_id)
  where is_available = true and job_queue_id is null;

-- legacy_prepare.sql may already have renamed an old table to this name.
create table if not exists {schema}._private_known_crontabs (
  identifier text not null,
  known_since timestamptz not null,
  last_execution timestamptz,
  constraint known_crontabs_pkey primary key (identifier)
);

alter table {schema}._private_tasks enable row level security;
alter table {schema}._private_job_queues enable row level security;
alter table {schema}._private_jobs enable row level security;
alter table {schema}._private_known_crontabs enable row level security;

create type {schema}.job_spec as (
  identifier text,
  payload json,
  queue_name text,
  run_at timestamptz,
  max_attempts smallint,
  job_key text,
  priority smallint,
  flags text[]
);
