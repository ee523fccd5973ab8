-- Whether a run that ends when nothing is left would find nothing at all: no job that anybody could take now or later,
-- and no worker to be buried, whose jobs would be free then. Much cheaper than a look.
-- $1 the seconds after which a silent worker is dead. Locks nothing. Reads one entry of jobs_main_index.
select
  not exists (
    select
    from {schema}._private_jobs as job
    where job.is_available = true
  )
  and not exists (
    select
    from {schema}._atta_workers as worker
    where worker.heartbeat_at < now() - $1::float8 * interval '1 second'
  ) as finds_nothing
