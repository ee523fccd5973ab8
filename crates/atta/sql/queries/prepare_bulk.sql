-- Returns what a COPY of jobs needs: the ids of their tasks and queues, which are created if they are missing, the
-- time, and ids for the jobs themselves. As JSON text.
-- $1 an object: identifiers, queue_names, count (of ids; 0 if the caller does not need them).
-- Locks only the rows that it creates. A name that another transaction creates at the same time is missing from the
-- result; then the caller must run the statement again.
with wanted as (
  select *
  from pg_catalog.json_to_record($1::text::json) as wanted (identifiers text[], queue_names text[], count integer)
), new_task as (
  insert into {schema}._private_tasks (identifier)
  select distinct name
  from wanted, pg_catalog.unnest(wanted.identifiers) as name
  where not exists (select from {schema}._private_tasks as task where task.identifier = name)
  order by name
  on conflict do nothing
  returning id, identifier
), new_queue as (
  insert into {schema}._private_job_queues (queue_name)
  select distinct name
  from wanted, pg_catalog.unnest(wanted.queue_names) as name
  where not exists (select from {schema}._private_job_queues as queue where queue.queue_name = name)
  order by name
  on conflict do nothing
  returning id, queue_name
)
select pg_catalog.json_build_object(
    'now', pg_catalog.now(),
    'tasks', (
      select coalesce(pg_catalog.json_object_agg(task.identifier, task.id), '{}')
      from (
        select id, identifier from new_task
        union all
        select task.id, task.identifier
        from wanted
        join {schema}._private_tasks as task on task.identifier = any (wanted.identifiers)
      ) as task
    ),
    'queues', (
      select coalesce(pg_catalog.json_object_agg(queue.queue_name, queue.id), '{}')
      from (
        select id, queue_name from new_queue
        union all
        select queue.id, queue.queue_name
        from wanted
        join {schema}._private_job_queues as queue on queue.queue_name = any (wanted.queue_names)
      ) as queue
    ),
    'ids', (
      select coalesce(
        pg_catalog.json_agg(pg_catalog.nextval(pg_catalog.pg_get_serial_sequence('{schema_in_text}._private_jobs', 'id'))),
        '[]'
      )
      from pg_catalog.generate_series(1, wanted.count)
    )
  )::text
from wanted
