-- Whether a run that ends when nothing is left would find nothing at all: no job that anybody could take now or later. Much
-- cheaper than a poll. It does not ask for stale workers: only a worker that has sent heartbeats for a whole threshold may
-- declare others dead, and such a run is over before. Locks nothing. Reads one entry of jobs_main_index.
select
  not exists (
    select
    from {schema}._private_jobs as job
    where job.is_available = true
  ) as finds_nothing
