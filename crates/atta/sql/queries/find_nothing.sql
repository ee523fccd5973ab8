-- Whether there is no job at all that any worker could claim now or later. For a run that ends when no jobs are left:
-- much cheaper than a poll. It does not check for stale workers: only a worker that has sent heartbeats for a whole
-- threshold may declare others dead, and such a run ends before that. If row level security applies to the role and may
-- hide jobs from it, the result is false, so that the run continues and reports the problem. Locks nothing. Reads one
-- entry of jobs_main_index.
select
  not exists (
    select
    from {schema}._private_jobs as job
    where job.is_available = true
  )
  and not exists (
    select
    from pg_catalog.pg_class as relation
    join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
    where namespace.nspname = {schema_text}
      and relation.relname = '_private_jobs'
      and pg_catalog.row_security_active(relation.oid)
  ) as finds_nothing
