-- Unlocks jobs that workers have claimed, with the queues that are locked for them, notifies the workers, and returns
-- the jobs as JSON text. Only for workers that are known to be gone. The attempt still counts. $1 an object with
-- job_ids. Locks the jobs in the order of their ids, then their queues; primary keys.
with taken as materialized (
  select job.id, job.job_queue_id, job.locked_by
  from {schema}._private_jobs as job
  where job.id in (
      select pg_catalog.unnest(argument.job_ids)
      from pg_catalog.json_to_record($1::text::json) as argument (job_ids bigint[])
    )
    and job.locked_at is not null
  order by job.id
  for update
), unlocked as (
  update {schema}._private_jobs as job
  set locked_at = null, locked_by = null
  from taken
  where job.id = taken.id
  returning job.*
), freed as (
  update {schema}._private_job_queues as queue
  set locked_at = null, locked_by = null
  from taken
  where queue.id = taken.job_queue_id
    and queue.locked_by = taken.locked_by
), announced as materialized (
  select pg_catalog.pg_notify('jobs:insert', pg_catalog.json_build_object('r', pg_catalog.random(), 'count', pg_catalog.count(*), 'schema', {schema_text})::text)
  from unlocked
  having pg_catalog.count(*) > 0
)
select
  {job_json}
from unlocked as job
cross join lateral (
  select
    (select task.identifier from {schema}._private_tasks as task where task.id = job.task_id) as task_identifier,
    (select queue.queue_name from {schema}._private_job_queues as queue where queue.id = job.job_queue_id)
      as queue_name
) as names
where (select pg_catalog.count(*) from announced) >= 0
order by job.id
