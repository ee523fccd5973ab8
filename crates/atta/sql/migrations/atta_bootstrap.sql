-- Our own revisions, separate from Graphile's: one of our ids in its table would make Graphile skip its own revision.
create table {schema}._atta_migrations (
  id integer not null,
  ts timestamptz not null default pg_catalog.now(),
  breaking boolean not null default false,
  primary key (id)
);
