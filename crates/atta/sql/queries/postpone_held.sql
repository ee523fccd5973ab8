-- Delays jobs that a shutdown interrupted. $1 the ids, $2 the delay in seconds. Primary key.
update {schema}._private_jobs as job
set run_at = greatest(job.run_at, pg_catalog.now() + $2::float8 * interval '1 second')
where job.id = any ($1::bigint[])
