-- Whether the revisions of a schema are the newest that we know, with the right marks, and our relations are there.
-- $1 Graphile's newest revision, $2 the breaking ones, $3 our own newest, $4 the names of relations, with the schema's.
-- Fails where the tables of revisions are missing. Locks nothing.
select
  (
    select max(migration.id) = $1::integer
      and bool_and(migration.breaking or migration.id <> all ($2::integer[]))
    from {schema}.migrations as migration
  )
  and (
    select max(migration.id) = $3::integer
    from {schema}._atta_migrations as migration
  )
  and not exists (
    select
    from unnest($4::text[]) as relation (name)
    where to_regclass(relation.name) is null
  ) as is_current
