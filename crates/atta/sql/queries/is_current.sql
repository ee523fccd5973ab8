-- Whether a schema has the newest revisions that we know, with the right marks, and our relations, with valid indexes.
-- The build of an invalid index is still running, or was interrupted.
-- $1 Graphile's newest revision, $2 the breaking ones, $3 our own newest, $4 the names of the relations, with the
-- schema. Fails if the tables of revisions are missing. Locks nothing.
select
  (
    select pg_catalog.max(migration.id) = $1::integer
      and pg_catalog.bool_and(migration.breaking or migration.id <> all ($2::integer[]))
    from {schema}.migrations as migration
  )
  and (
    select pg_catalog.max(migration.id) = $3::integer
    from {schema}._atta_migrations as migration
  )
  and not exists (
    select
    from pg_catalog.unnest($4::text[]) as relation (name)
    where pg_catalog.to_regclass(relation.name) is null
      or exists (
        select
        from pg_catalog.pg_index as index
        where index.indexrelid = pg_catalog.to_regclass(relation.name)::oid
          and not index.indisvalid
      )
  ) as is_current
