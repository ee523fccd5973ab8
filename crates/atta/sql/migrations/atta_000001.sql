-- The first of our own revisions.
insert into {schema}._atta_migrations (id, breaking) values (1, false);

-- The workers that are alive, by their own word: who, where, since when, and when last heard of.
create table {schema}._atta_workers (
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
create table {schema}._atta_deaths (
  worker_id text not null,
  found_at timestamptz not null default now(),
  primary key (worker_id)
);
alter table {schema}._atta_deaths enable row level security;
