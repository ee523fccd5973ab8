-- From revisions 1 to 10, second part: copies the jobs into the new tables, with their old ids, then drops the old
-- tables. Counters were integers: a value that does not fit into a smallint becomes the nearest one that does, and
-- stays on the same side of max_attempts. All locks are older than four hours here, so no worker holds them any more.
insert into {schema}._private_tasks (identifier)
select distinct job.task_identifier
from {schema}.jobs as job
order by job.task_identifier;

insert into {schema}._private_job_queues (queue_name)
select distinct job.queue_name
from {schema}.jobs as job
where job.queue_name is not null
order by job.queue_name;

insert into {schema}._private_jobs (
  id, job_queue_id, task_id, payload, priority, run_at, attempts, max_attempts, last_error,
  created_at, updated_at, key, revision, flags
)
overriding system value
select
  job.id,
  queue.id,
  task.id,
  job.payload,
  greatest(-32768, least(32767, job.priority)),
  job.run_at,
  case
    when job.attempts < job.max_attempts then greatest(0, least(32766, job.attempts))
    else least(32767, job.attempts)
  end,
  greatest(1, least(32767, job.max_attempts)),
  job.last_error,
  job.created_at,
  job.updated_at,
  job.key,
  job.revision,
  job.flags
from {schema}.jobs as job
join {schema}._private_tasks as task on task.identifier = job.task_identifier
left join {schema}._private_job_queues as queue on queue.queue_name = job.queue_name
order by job.id;

-- An id that was assigned once is never assigned again, even if its job completed long ago.
select pg_catalog.setval('{schema_in_text}.jobs_id_seq1', sequence.last_value, sequence.is_called)
from {schema}.jobs_id_seq as sequence;

drop table {schema}.jobs;
drop table {schema}.job_queues;
