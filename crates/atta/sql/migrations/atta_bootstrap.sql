-- Our own revisions, apart from Graphile's: an id of ours in its table would make it skip its own.
create table {schema}._atta_migrations (
  id integer not null,
  ts timestamptz not null default pg_catalog.now(),
  breaking boolean not null default false,
  primary key (id)
);
