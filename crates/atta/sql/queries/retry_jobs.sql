-- Makes jobs that are not running due at once with all their attempts, notifies the workers, and returns the jobs as
-- JSON text.
-- $1 the arguments as a JSON object. Locks and indexes: those of the function. The time is the database's.
with retried as materialized (
  select job.*
  from pg_catalog.json_to_record($1::text::json) as argument (job_ids bigint[])
  cross join lateral {schema}.reschedule_jobs(argument.job_ids, run_at := pg_catalog.now(), attempts := 0) as job
), announced as materialized (
  select pg_catalog.pg_notify('jobs:insert', pg_catalog.json_build_object('r', pg_catalog.random(), 'count', pg_catalog.count(*), 'schema', {schema_text})::text)
  from retried
  having pg_catalog.count(*) > 0
)
select
  {job_json}
from retried as job
cross join lateral (
  select
    (select task.identifier from {schema}._private_tasks as task where task.id = job.task_id) as task_identifier,
    (select queue.queue_name from {schema}._private_job_queues as queue where queue.id = job.job_queue_id)
      as queue_name
) as names
where (select pg_catalog.count(*) from announced) >= 0
order by job.id
