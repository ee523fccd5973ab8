-- The table that records which of Graphile's revisions a schema has. Also adds the column `breaking` to an older table.
create table if not exists {schema}.migrations (
  id integer not null,
  ts timestamptz not null default pg_catalog.now(),
  breaking boolean not null default false,
  constraint migrations_pkey primary key (id)
);
alter table {schema}.migrations
  add column if not exists breaking boolean not null default false;
