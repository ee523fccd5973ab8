-- Whether there is no job at all that any worker could claim now or later. For a run that ends when no jobs are left:
-- much cheaper than a poll. It does not check for stale workers: only a worker that has sent heartbeats for a whole
-- threshold may declare others dead, and such a run ends before that. Locks nothing. Reads one entry of
-- jobs_main_index.
select
  not exists (
    select
    from {schema}._private_jobs as job
    where job.is_available = true
  ) as finds_nothing
