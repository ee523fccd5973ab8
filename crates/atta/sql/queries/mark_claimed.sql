-- Claims one job durably that the transaction has locked (find_claimable.sql). $1 the worker, $2 the job, $3 its queue
-- or null, $4 the time, or null for the database's. Returns the columns of claim_by_job.sql. Primary keys.
with task as not materialized (
  select task.id, task.identifier
  from {schema}._private_tasks as task
), locked_queue as (
  update {schema}._private_job_queues as queue
  set locked_by = $1::text, locked_at = coalesce($4::timestamptz, pg_catalog.now())
  where queue.id = $3::integer
)
update {schema}._private_jobs as job
set
  attempts = job.attempts + 1,
  locked_by = $1::text,
  locked_at = coalesce($4::timestamptz, pg_catalog.now())
where job.id = $2::bigint
returning
  {claimed_columns},
  null::timestamptz as last_run_at,
  null::timestamptz as ahead_run_at,
  null::bigint as ahead_id
