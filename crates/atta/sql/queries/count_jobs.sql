-- How many jobs are in each state, as one JSON object. $1 is not used. Locks nothing; reads the whole table.
select pg_catalog.json_build_object(
    {job_counts}
  )::text
from {schema}._private_jobs as job
left join {schema}._private_job_queues as queue on queue.id = job.job_queue_id
cross join lateral (
  select {job_state} as name
) as state
where $1::text is not null
