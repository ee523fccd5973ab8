-- All rows, and the log of the changes, as JSON text.
select json_build_object(
  'jobs', (
    select coalesce(json_agg(public.plain(to_jsonb(job)) order by job.id), '[]')
    from graphile_worker._private_jobs as job
  ),
  'queues', (
    select coalesce(json_agg(public.plain(to_jsonb(queue)) order by queue.id), '[]')
    from graphile_worker._private_job_queues as queue
  ),
  'task_ids', (select coalesce(json_agg(task.id order by task.id), '[]') from graphile_worker._private_tasks as task),
  'log', (
    select coalesce(
      json_agg(
        json_build_object(
          'pid', pid, 'query', query, 'now', now, 'is_job', is_job,
          'old', case when old is not null then public.plain(old) end,
          'new', case when new is not null then public.plain(new) end
        )
        order by seq
      ),
      '[]'
    )
    from public.change
  )
)::text
