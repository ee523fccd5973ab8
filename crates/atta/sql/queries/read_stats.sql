-- Counts of jobs by state: of all (level 3), of each task (level 1) and of each queue (level 2), the largest first. As
-- JSON text. $1 an object: top, how many tasks and queues at most. Locks nothing; one pass over the table of jobs.
select ranked.row::text
from (
  select
    pg_catalog.json_build_object(
      'level', grouping(task.identifier, queue.queue_name),
      'task_identifier', task.identifier,
      'queue_name', queue.queue_name,
      'oldest_due_at', pg_catalog.to_char(
        pg_catalog.min(greatest(pg_catalog.timezone('UTC', job.run_at), timestamp '0001-01-01'))
          filter (where job.id is not null and state.name in ('ready', 'waiting')),
        'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
      ),
      {job_counts}
    ) as row,
    pg_catalog.row_number() over (
      partition by grouping(task.identifier, queue.queue_name)
      order by pg_catalog.count(*) desc, task.identifier, queue.queue_name
    ) as rank
  from {schema}._private_jobs as job
  join {schema}._private_tasks as task on task.id = job.task_id
  left join {schema}._private_job_queues as queue on queue.id = job.job_queue_id
  cross join lateral (
    select {job_state} as name
  ) as state
  group by grouping sets ((), (task.identifier), (queue.queue_name))
) as ranked
where ranked.rank <= greatest(
  (($1::text::json) ->> 'top'::text)::bigint,
  case when (ranked.row ->> 'level'::text)::integer = 3 then 1 else 0 end
)
order by ranked.rank
