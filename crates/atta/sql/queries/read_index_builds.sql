-- Whether another session builds an index on the table of jobs. $1 the name of the schema, $2 that of the table. Locks nothing.
-- What a session of another role builds is hidden from roles without pg_read_all_stats: then the table is not known.
select exists (
    select
    from pg_catalog.pg_stat_progress_create_index as build
    where build.pid <> pg_catalog.pg_backend_pid()
      and build.datname = pg_catalog.current_database()
      and coalesce(
        build.relid = (
          select relation.oid
          from pg_catalog.pg_class as relation
          join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
          where namespace.nspname = $1::text
            and relation.relname = $2::text
        ),
        true
      )
  ) as is_building
