-- Whether another session is building an index on the table of jobs. $1 the name of the schema, $2 that of the table.
-- Locks nothing. For roles without pg_read_all_stats, the table is hidden in the builds of other roles' sessions; such
-- a build counts as one on the table of jobs.
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
