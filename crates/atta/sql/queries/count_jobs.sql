-- How many jobs are in each state, as one JSON object. $1 is not used. Locks nothing; reads the whole table.
select json_build_object(
    'ready', count(*) filter (where state.name = 'ready'),
    'waiting', count(*) filter (where state.name = 'waiting'),
    'scheduled', count(*) filter (where state.name = 'scheduled'),
    'retrying', count(*) filter (where state.name = 'retrying'),
    'running', count(*) filter (where state.name = 'running'),
    'failed', count(*) filter (where state.name = 'failed')
  )::text
from {schema}._private_jobs as job
left join {schema}._private_job_queues as queue on queue.id = job.job_queue_id
cross join lateral (
  select case
    when $1::text is null then null
    when job.locked_at is not null then 'running'
    when job.attempts >= job.max_attempts then 'failed'
    when job.run_at > now() and job.attempts > 0 then 'retrying'
    when job.run_at > now() then 'scheduled'
    when queue.locked_at is not null then 'waiting'
    else 'ready'
  end as name
) as state
