-- Adds many jobs, or changes those that have their keys. Returns them all, in the order of the specs.
--
-- Keys are taken one by one in their own order, by the insert itself: whoever meets a key that another transaction
-- holds waits there, so that two batches can't wait for each other. A key whose job is running or permanently failed
-- is met, and thereby locked, without being written; that job then gives up its key, and the insert is repeated.
-- No claim can come between the two, so no add is lost, whatever a worker does at the same time.
create or replace function {schema}.add_jobs(
  specs {schema}.job_spec[],
  job_key_preserve_run_at boolean default false
)
returns setof {schema}._private_jobs
as $atta$
-- {functions_marker}
#variable_conflict use_column
declare
  v_wrong {schema}.job_spec;
  v_key text;
  v_keys text[];
  v_unkeyed_ids bigint[];
  v_added bigint;
begin
  select spec.*
  into v_wrong
  from unnest(specs) as spec
  where length(spec.identifier) > 128
    or length(spec.queue_name) > 128
    or length(spec.job_key) not between 1 and 512
    or spec.max_attempts < 1
  limit 1;
  if found then
    if length(v_wrong.identifier) > 128 then
      raise exception using
        errcode = 'GWBID',
        message = format('task identifier is too long: %s characters (%L...)',
          length(v_wrong.identifier), left(v_wrong.identifier, 32)),
        hint = 'At most 128 characters are allowed.';
    elsif length(v_wrong.queue_name) > 128 then
      raise exception using
        errcode = 'GWBQN',
        message = format('queue name is too long: %s characters (%L...)',
          length(v_wrong.queue_name), left(v_wrong.queue_name, 32)),
        hint = 'At most 128 characters are allowed.';
    elsif v_wrong.max_attempts < 1 then
      raise exception using
        errcode = 'GWBMA',
        message = format('invalid max_attempts: %s', v_wrong.max_attempts),
        hint = 'At least 1 attempt is needed, at most 32767 are allowed.';
    else
      raise exception using
        errcode = 'GWBJK',
        message = case v_wrong.job_key
          when '' then 'job key is empty'
          else format('job key is too long: %s characters (%L...)',
            length(v_wrong.job_key), left(v_wrong.job_key, 32))
        end,
        hint = 'A job key has 1 to 512 characters; leave it out (null) for a job without one.';
    end if;
  end if;

  select spec.job_key
  into v_key
  from unnest(specs) as spec
  where spec.job_key is not null
  group by spec.job_key
  having count(*) > 1
  limit 1;
  if found then
    raise exception using
      errcode = 'cardinality_violation',
      message = format('two jobs of one call have the job key %L', v_key),
      hint = 'Add them in two calls, or give them different keys.';
  end if;

  -- Only what is missing: an insert that conflicts would burn a value of a 32-bit sequence.
  insert into {schema}._private_tasks (identifier)
  select distinct spec.identifier
  from unnest(specs) as spec
  where not exists (select from {schema}._private_tasks as task where task.identifier = spec.identifier)
  order by spec.identifier
  on conflict do nothing;

  insert into {schema}._private_job_queues (queue_name)
  select distinct spec.queue_name
  from unnest(specs) as spec
  where spec.queue_name is not null
    and not exists (select from {schema}._private_job_queues as queue where queue.queue_name = spec.queue_name)
  order by spec.queue_name
  on conflict do nothing;

  if coalesce(cardinality(specs), 0) = 0 then
    perform pg_notify('jobs:insert', '');
    return;
  end if;
  -- Delivered at commit.
  perform pg_notify(
    'jobs:insert',
    json_build_object('r', random(), 'count', cardinality(specs), 'schema', {schema_text})::text
  );

  select array_agg(spec.job_key order by spec.job_key)
  into v_keys
  from unnest(specs) as spec
  where spec.job_key is not null;

  if v_keys is null then
    return query
      insert into {schema}._private_jobs as job (
        job_queue_id, task_id, payload, run_at, max_attempts, priority, flags
      )
      select
        queue.id,
        task.id,
        coalesce(spec.payload, '{}'::json),
        coalesce(spec.run_at, now()),
        coalesce(spec.max_attempts, 25::smallint),
        coalesce(spec.priority, 0::smallint),
        (select jsonb_object_agg(flag, true) from unnest(spec.flags) as flag)
      from unnest(specs) with ordinality as spec
      join {schema}._private_tasks as task on task.identifier = spec.identifier
      left join {schema}._private_job_queues as queue on queue.queue_name = spec.queue_name
      where spec.queue_name is null or queue.id is not null
      order by spec.ordinality
      returning job.*;
    get diagnostics v_added = row_count;
  else
    with added as (
      insert into {schema}._private_jobs as job (
        job_queue_id, task_id, payload, run_at, max_attempts, priority, flags
      )
      select
        queue.id,
        task.id,
        coalesce(spec.payload, '{}'::json),
        coalesce(spec.run_at, now()),
        coalesce(spec.max_attempts, 25::smallint),
        coalesce(spec.priority, 0::smallint),
        (select jsonb_object_agg(flag, true) from unnest(spec.flags) as flag)
      from unnest(specs) with ordinality as spec
      join {schema}._private_tasks as task on task.identifier = spec.identifier
      left join {schema}._private_job_queues as queue on queue.queue_name = spec.queue_name
      where spec.job_key is null
        and (spec.queue_name is null or queue.id is not null)
      order by spec.ordinality
      returning job.id
    )
    select array_agg(added.id) into v_unkeyed_ids from added;

    loop
      with wanted as (
        select unnest(v_keys) as key
      ), added as (
        insert into {schema}._private_jobs as job (
          job_queue_id, task_id, payload, run_at, max_attempts, key, priority, flags
        )
        select
          queue.id,
          task.id,
          coalesce(spec.payload, '{}'::json),
          coalesce(spec.run_at, now()),
          coalesce(spec.max_attempts, 25::smallint),
          spec.job_key,
          coalesce(spec.priority, 0::smallint),
          (select jsonb_object_agg(flag, true) from unnest(spec.flags) as flag)
        from unnest(specs) as spec
        join wanted on wanted.key = spec.job_key
        join {schema}._private_tasks as task on task.identifier = spec.identifier
        left join {schema}._private_job_queues as queue on queue.queue_name = spec.queue_name
        where spec.queue_name is null or queue.id is not null
        order by spec.job_key
        on conflict (key) do update set
          job_queue_id = excluded.job_queue_id,
          task_id = excluded.task_id,
          payload = case
            when json_typeof(job.payload) = 'array' and json_typeof(excluded.payload) = 'array'
              then (job.payload::jsonb || excluded.payload::jsonb)::json
            else excluded.payload
          end,
          run_at = case
            when job_key_preserve_run_at and job.attempts = 0 then job.run_at
            else excluded.run_at
          end,
          max_attempts = excluded.max_attempts,
          priority = excluded.priority,
          flags = excluded.flags,
          revision = job.revision + 1,
          attempts = 0,
          last_error = null,
          updated_at = now()
        where job.locked_at is null and job.attempts < job.max_attempts
        returning job.key
      )
      select array_agg(wanted.key order by wanted.key)
      into v_keys
      from wanted
      where not exists (select from added where added.key = wanted.key);
      exit when v_keys is null;

      update {schema}._private_jobs as job
      set key = null, attempts = job.max_attempts, updated_at = now()
      where job.key = any (v_keys);
      -- Nothing in our way, and yet not inserted: the count below says why.
      exit when not found;
    end loop;

    return query
      select job.*
      from (
        select
          wanted.ordinality,
          wanted.job_key,
          row_number() over (partition by wanted.job_key is null order by wanted.ordinality) as place
        from unnest(specs) with ordinality as wanted
      ) as spec
      join {schema}._private_jobs as job
        on job.id = case
          when spec.job_key is null then v_unkeyed_ids[spec.place]
          else (select keyed.id from {schema}._private_jobs as keyed where keyed.key = spec.job_key)
        end
      order by spec.ordinality;
    get diagnostics v_added = row_count;
  end if;

  if v_added < cardinality(specs) then
    raise exception using
      errcode = 'serialization_failure',
      message = 'a task or queue was cleaned up while jobs of it were being added',
      hint = 'Nothing was added; do it again.';
  end if;
end
$atta$ language plpgsql volatile;
