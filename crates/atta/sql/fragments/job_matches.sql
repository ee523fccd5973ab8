-- Whether the job `job` with `task`, `queue` and `state` matches the filter `filter`.
(filter.ids is null or job.id = any (filter.ids))
  and (filter.states is null or state.name = any (filter.states))
  and (filter.task_identifier is null or task.identifier = filter.task_identifier)
  and (filter.queue_name is null or queue.queue_name = filter.queue_name)
  and (filter.key is null or job.key = filter.key)
  and (filter.error_contains is null or position(filter.error_contains in job.last_error) > 0)
  and (filter.created_before is null or job.created_at < filter.created_before)
  and (
    filter.failed_since is null
    or (job.last_error is not null and job.attempts > 0 and job.updated_at >= filter.failed_since)
  )
  and (filter.locked_before is null or job.locked_at < filter.locked_before)
  and (filter.locked_by is null or job.locked_by = filter.locked_by)
  and (
    filter.after_id is null
    or (filter.newest_first is true and job.id < filter.after_id)
    or (filter.newest_first is not true and job.id > filter.after_id)
  )
