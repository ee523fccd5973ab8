-- Adds many jobs, or changes existing jobs that have their keys. Returns them all, in the order of the specs.
--
-- Keys are inserted one by one in their sort order. The insert waits for a key that another transaction holds, and
-- because of the order two batches can't wait for each other. If the job that has the key is running or permanently
-- failed, the insert locks it without changing it; then that job loses its key, and the insert is repeated. No claim
-- can happen between the two, so no add is lost, whatever a worker does at the same time.
--
-- Functions are named with their schema, here and in the other files. Otherwise a better matching function of that name
-- in a schema of the caller's search_path would be called instead, with the caller's rights. The same is true of
-- operators. Those without a schema here are found in pg_catalog with exactly these types, and no other can match
-- better.
create or replace function {schema}.add_jobs(
  specs {schema}.job_spec[],
  job_key_preserve_run_at boolean default false
)
returns setof {schema}._private_jobs
as $atta$
-- {functions_marker}
#variable_conflict use_column
declare
  v_invalid {schema}.job_spec;
  v_key text;
  v_keys text[];
  v_unkeyed_ids bigint[];
  v_keyed_ids bigint[];
  v_done_keys text[];
  -- A session keeps its plans. A plan that was made while the table was almost empty reads the whole table, and would do so
  -- for every later add of a single job. Therefore a few jobs are returned as the inserts returned them. Many jobs are read
  -- again by their ids, because their payloads may be too large for an array.
  v_are_few constant boolean := pg_catalog.cardinality(specs) <= 10;
  v_jobs {schema}._private_jobs[];
  v_added bigint;
  v_is_gone boolean;
begin
  select spec.*
  into v_invalid
  from pg_catalog.unnest(specs) as spec
  where spec.identifier is null
    or pg_catalog.length(spec.identifier) > 128
    or pg_catalog.length(spec.queue_name) > 128
    or pg_catalog.length(spec.job_key) not between 1 and 512
    or spec.max_attempts < 1
    or (case when pg_catalog.array_ndims(spec.flags) = 1 then pg_catalog.array_position(spec.flags, null) end)
      is not null
    or pg_catalog.octet_length(pg_catalog.array_to_string(spec.flags, '')) > 65536
  limit 1;
  if found then
    if v_invalid.identifier is null then
      raise exception using
        errcode = 'GWBID',
        message = 'task identifier is null',
        hint = 'Every job needs a task identifier of up to 128 characters.';
    elsif pg_catalog.length(v_invalid.identifier) > 128 then
      raise exception using
        errcode = 'GWBID',
        message = pg_catalog.format('task identifier is too long: %s characters (%L...)',
          pg_catalog.length(v_invalid.identifier), pg_catalog.left(v_invalid.identifier, 32)),
        hint = 'At most 128 characters are allowed.';
    elsif pg_catalog.length(v_invalid.queue_name) > 128 then
      raise exception using
        errcode = 'GWBQN',
        message = pg_catalog.format('queue name is too long: %s characters (%L...)',
          pg_catalog.length(v_invalid.queue_name), pg_catalog.left(v_invalid.queue_name, 32)),
        hint = 'At most 128 characters are allowed.';
    elsif v_invalid.max_attempts < 1 then
      raise exception using
        errcode = 'GWBMA',
        message = pg_catalog.format('invalid max_attempts: %s', v_invalid.max_attempts),
        hint = 'At least 1 attempt is needed, at most 32767 are allowed.';
    elsif (case when pg_catalog.array_ndims(v_invalid.flags) = 1 then pg_catalog.array_position(v_invalid.flags, null) end) is not null then
      raise exception using
        errcode = 'invalid_parameter_value',
        message = 'a flag is null',
        hint = 'Remove the null from the array; flags may be null as a whole.';
    elsif pg_catalog.octet_length(pg_catalog.array_to_string(v_invalid.flags, '')) > 65536 then
      raise exception using
        errcode = 'invalid_parameter_value',
        message = pg_catalog.format('the flags of a job are too long: %s bytes',
          pg_catalog.octet_length(pg_catalog.array_to_string(v_invalid.flags, ''))),
        hint = 'A job may have at most 65,536 bytes of flags, because workers read the flags of every job.';
    else
      raise exception using
        errcode = 'GWBJK',
        message = case v_invalid.job_key
          when '' then 'job key is empty'
          else pg_catalog.format('job key is too long: %s characters (%L...)',
            pg_catalog.length(v_invalid.job_key), pg_catalog.left(v_invalid.job_key, 32))
        end,
        hint = 'A job key has 1 to 512 characters; for a job without a key, use null.';
    end if;
  end if;

  select spec.job_key
  into v_key
  from pg_catalog.unnest(specs) as spec
  where spec.job_key is not null
  group by spec.job_key
  having pg_catalog.count(*) > 1
  limit 1;
  if found then
    raise exception using
      errcode = 'cardinality_violation',
      message = pg_catalog.format('two jobs of one call have the job key %L', v_key),
      hint = 'Add them in two calls, or give them different keys.';
  end if;

  -- Inserts only missing rows: an insert that conflicts would use up a value of a 32-bit sequence.
  insert into {schema}._private_tasks (identifier)
  select distinct spec.identifier
  from pg_catalog.unnest(specs) as spec
  where not exists (select from {schema}._private_tasks as task where task.identifier = spec.identifier)
  order by spec.identifier
  on conflict do nothing;

  insert into {schema}._private_job_queues (queue_name)
  select distinct spec.queue_name
  from pg_catalog.unnest(specs) as spec
  where spec.queue_name is not null
    and not exists (select from {schema}._private_job_queues as queue where queue.queue_name = spec.queue_name)
  order by spec.queue_name
  on conflict do nothing;

  -- At the stricter levels of isolation, a task or queue that a clean-up has deleted since the snapshot is still visible: see
  -- add_job.sql.
  if pg_catalog.current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
    insert into {schema}._private_tasks (id, identifier) overriding system value
    select task.id, task.identifier
    from {schema}._private_tasks as task
    where task.identifier in (select spec.identifier from pg_catalog.unnest(specs) as spec)
    order by task.identifier
    on conflict do nothing;
    v_is_gone := found;
    insert into {schema}._private_job_queues (id, queue_name) overriding system value
    select queue.id, queue.queue_name
    from {schema}._private_job_queues as queue
    where queue.queue_name in (select spec.queue_name from pg_catalog.unnest(specs) as spec)
    order by queue.queue_name
    on conflict do nothing;
    if v_is_gone or found then
      raise exception using
        errcode = 'serialization_failure',
        message = 'the task or queue of a job was deleted by a clean-up while the job was being added',
        hint = 'Nothing was added. Repeat the call.';
    end if;
  end if;

  if coalesce(pg_catalog.cardinality(specs), 0) = 0 then
    perform pg_catalog.pg_notify('jobs:insert', '');
    return;
  end if;
  -- PostgreSQL delivers the notification at commit.
  perform pg_catalog.pg_notify(
    'jobs:insert',
    pg_catalog.json_build_object(
      'r', pg_catalog.random(), 'count', pg_catalog.cardinality(specs), 'schema', {schema_text}
    )::text
  );

  select pg_catalog.array_agg(spec.job_key order by spec.job_key)
  into v_keys
  from pg_catalog.unnest(specs) as spec
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
        coalesce(spec.run_at, pg_catalog.now()),
        coalesce(spec.max_attempts, 25::smallint),
        coalesce(spec.priority, 0::smallint),
        (select pg_catalog.jsonb_object_agg(flag, true) from pg_catalog.unnest(spec.flags) as flag)
      from pg_catalog.unnest(specs) with ordinality as spec
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
        coalesce(spec.run_at, pg_catalog.now()),
        coalesce(spec.max_attempts, 25::smallint),
        coalesce(spec.priority, 0::smallint),
        (select pg_catalog.jsonb_object_agg(flag, true) from pg_catalog.unnest(spec.flags) as flag)
      from pg_catalog.unnest(specs) with ordinality as spec
      join {schema}._private_tasks as task on task.identifier = spec.identifier
      left join {schema}._private_job_queues as queue on queue.queue_name = spec.queue_name
      where spec.job_key is null
        and (spec.queue_name is null or queue.id is not null)
      order by spec.ordinality
      returning job.id, job as job_row
    )
    select pg_catalog.array_agg(added.id), pg_catalog.array_agg(added.job_row) filter (where v_are_few)
    into v_unkeyed_ids, v_jobs
    from added;

    loop
      with wanted as (
        select pg_catalog.unnest(v_keys) as key
      ), added as (
        insert into {schema}._private_jobs as job (
          job_queue_id, task_id, payload, run_at, max_attempts, key, priority, flags
        )
        select
          queue.id,
          task.id,
          coalesce(spec.payload, '{}'::json),
          coalesce(spec.run_at, pg_catalog.now()),
          coalesce(spec.max_attempts, 25::smallint),
          spec.job_key,
          coalesce(spec.priority, 0::smallint),
          (select pg_catalog.jsonb_object_agg(flag, true) from pg_catalog.unnest(spec.flags) as flag)
        from pg_catalog.unnest(specs) as spec
        join wanted on wanted.key = spec.job_key
        join {schema}._private_tasks as task on task.identifier = spec.identifier
        left join {schema}._private_job_queues as queue on queue.queue_name = spec.queue_name
        where spec.queue_name is null or queue.id is not null
        order by spec.job_key
        on conflict (key) do update set
          job_queue_id = excluded.job_queue_id,
          task_id = excluded.task_id,
          -- Two arrays are joined as jsonb, as Graphile does. jsonb rejects \u0000, half of a surrogate pair, a character
          -- that the encoding of the database does not have, and huge numbers, with an error that quotes the stored
          -- payload. Arrays that may have one of these are joined as texts.
          payload = case
            when pg_catalog.json_typeof(job.payload) <> 'array' or pg_catalog.json_typeof(excluded.payload) <> 'array'
              then excluded.payload
            when (job.payload::text || excluded.payload::text) !~ e'\\\\u|[0-9][eE][-+]?[0-9]{3}'
              and pg_catalog.length(job.payload::text) + pg_catalog.length(excluded.payload::text) < 100000
              then (job.payload::jsonb || excluded.payload::jsonb)::json
            when pg_catalog.json_array_length(job.payload) = 0 then excluded.payload
            when pg_catalog.json_array_length(excluded.payload) = 0 then job.payload
            else (
              pg_catalog.left(pg_catalog.rtrim(job.payload::text, e' \t\n\r'), -1)
              || ', '
              || pg_catalog.substr(pg_catalog.ltrim(excluded.payload::text, e' \t\n\r'), 2)
            )::json
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
          updated_at = pg_catalog.now()
        where job.locked_at is null and job.attempts < job.max_attempts
        returning job.id, job.key, job as job_row
      )
      select
        pg_catalog.array_agg(wanted.key order by wanted.key) filter (where added.id is null),
        pg_catalog.array_cat(v_keyed_ids, pg_catalog.array_agg(added.id) filter (where added.id is not null)),
        pg_catalog.array_cat(v_done_keys, pg_catalog.array_agg(added.key) filter (where added.id is not null)),
        pg_catalog.array_cat(v_jobs, pg_catalog.array_agg(added.job_row) filter (where added.id is not null and v_are_few))
      into v_keys, v_keyed_ids, v_done_keys, v_jobs
      from wanted
      left join added on added.key = wanted.key;
      exit when v_keys is null;

      update {schema}._private_jobs as job
      set key = null, attempts = job.max_attempts, updated_at = pg_catalog.now()
      where job.key = any (v_keys);
      -- No job has this key, and still nothing was inserted: a task or queue is missing, which the count below detects.
      exit when not found;
    end loop;

    -- Reads by the ids that the inserts returned, not by key: at repeatable read, a job that another transaction has
    -- deleted since is still visible, and has the same key.
    return query
      select job.*
      from (
        select
          wanted.ordinality,
          wanted.job_key,
          pg_catalog.row_number() over (partition by wanted.job_key is null order by wanted.ordinality) as place
        from pg_catalog.unnest(specs) with ordinality as wanted
      ) as spec
      left join unnest(v_done_keys, v_keyed_ids) as keyed (key, id) on keyed.key = spec.job_key
      cross join lateral (
        select few.*
        from pg_catalog.unnest(v_jobs) as few
        where v_are_few
          and few.id = case when spec.job_key is null then v_unkeyed_ids[spec.place] else keyed.id end
        union all
        select many.*
        from {schema}._private_jobs as many
        where not v_are_few
          and many.id = case when spec.job_key is null then v_unkeyed_ids[spec.place] else keyed.id end
      ) as job
      order by spec.ordinality;
    get diagnostics v_added = row_count;
  end if;

  if v_added < pg_catalog.cardinality(specs) then
    raise exception using
      errcode = 'serialization_failure',
      message = 'the task or queue of a job was deleted by a clean-up while the job was being added',
      hint = 'Nothing was added. Repeat the call.';
  end if;
end
$atta$ language plpgsql volatile;
