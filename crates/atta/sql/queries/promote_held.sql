-- Promotes held claims to durable ones, so that the jobs can go on after this transaction has ended. $1 the worker, $2
-- the ids. Returns the ids, and the time of the claims, which is that of the transaction. Primary key.
update {schema}._private_jobs as job
set attempts = job.attempts + 1, locked_by = $1::text, locked_at = pg_catalog.now()
where job.id = any ($2::bigint[])
returning job.id, job.locked_at
