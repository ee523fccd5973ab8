-- The third part of a durable claim: the most urgent jobs of `direct`, `unqueued` and `head`.
taken as (
  select
    unqueued.id, unqueued.priority, unqueued.run_at, unqueued.task_id,
    null::integer as queue_id
  from unqueued
  union all
  select direct.id, direct.priority, direct.run_at, direct.task_id, null
  from direct
  union all
  select head.id, head.priority, head.run_at, head.task_id, head.queue_id
  from head
  order by priority, run_at, id
  limit $5::bigint
)
