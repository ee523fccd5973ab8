-- Adds one job, or changes the one that has its key. Returns the job; never null.
--
-- Keyed jobs in the modes replace and preserve_run_at are passed on to add_jobs, and so are invalid arguments, which it
-- rejects with an error. What remains here is one insert, and lookups that write nothing if the task and the queue
-- exist.
create or replace function {schema}.add_job(
  identifier text,
  payload json default null,
  queue_name text default null,
  run_at timestamptz default null,
  max_attempts integer default null,
  job_key text default null,
  priority integer default null,
  flags text[] default null,
  job_key_mode text default 'replace'
)
returns {schema}._private_jobs
as $atta$
-- {functions_marker}
#variable_conflict use_column
declare
  mode constant text := coalesce(add_job.job_key_mode, 'replace');
  v_task_id integer;
  v_queue_id integer;
  v_is_gone boolean := false;
  v_flags jsonb;
  v_job {schema}._private_jobs;
begin
  if add_job.job_key is not null and mode not in ('replace', 'preserve_run_at', 'unsafe_dedupe') then
    raise exception using
      errcode = 'GWBKM',
      message = pg_catalog.format('invalid job_key_mode: %L', add_job.job_key_mode),
      hint = 'It must be ''replace'', ''preserve_run_at'' or ''unsafe_dedupe''.';
  end if;
  if add_job.max_attempts not between -32768 and 32767 or add_job.priority not between -32768 and 32767 then
    raise exception using
      errcode = 'numeric_value_out_of_range',
      message = case
        when add_job.max_attempts not between -32768 and 32767
          then pg_catalog.format('invalid max_attempts: %s', add_job.max_attempts)
        else pg_catalog.format('invalid priority: %s', add_job.priority)
      end,
      hint = 'max_attempts must be between 1 and 32767, priority between -32768 and 32767.';
  end if;

  if (add_job.job_key is not null and mode <> 'unsafe_dedupe')
    or add_job.identifier is null
    or pg_catalog.length(add_job.identifier) > 128
    or pg_catalog.length(add_job.queue_name) > 128
    or pg_catalog.length(add_job.job_key) not between 1 and 512
    or add_job.max_attempts < 1
    or (case when pg_catalog.array_ndims(add_job.flags) = 1 then pg_catalog.array_position(add_job.flags, null) end)
      is not null
    or pg_catalog.octet_length(pg_catalog.array_to_string(add_job.flags, '')) > 65536
  then
    select added.*
    into v_job
    from {schema}.add_jobs(
      array[row(
        add_job.identifier,
        add_job.payload,
        add_job.queue_name,
        add_job.run_at,
        add_job.max_attempts::smallint,
        add_job.job_key,
        add_job.priority::smallint,
        add_job.flags
      )::{schema}.job_spec],
      mode = 'preserve_run_at'
    ) as added;
    return v_job;
  end if;

  loop
    select id into v_task_id from {schema}._private_tasks where identifier = add_job.identifier;
    exit when found;
    insert into {schema}._private_tasks (identifier) values (add_job.identifier) on conflict do nothing;
  end loop;
  loop
    exit when add_job.queue_name is null;
    select id into v_queue_id from {schema}._private_job_queues where queue_name = add_job.queue_name;
    exit when found;
    insert into {schema}._private_job_queues (queue_name) values (add_job.queue_name) on conflict do nothing;
  end loop;
  -- At the stricter levels of isolation, a task or queue that a clean-up has deleted since the snapshot is still visible. An
  -- insert of the same row finds out: it conflicts with every row that is really there, and writes nothing. A lock of the
  -- row would do as well, but needs a privilege that the worker role does not have.
  if pg_catalog.current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
    insert into {schema}._private_tasks (id, identifier) overriding system value
    values (v_task_id, add_job.identifier)
    on conflict do nothing;
    v_is_gone := found;
    if v_queue_id is not null then
      insert into {schema}._private_job_queues (id, queue_name) overriding system value
      values (v_queue_id, add_job.queue_name)
      on conflict do nothing;
      v_is_gone := v_is_gone or found;
    end if;
  end if;

  -- Not a part of the insert: its state would take memory in every add, so much that the server's allocator returned it to
  -- the operating system and asked for it again each time. An add took 50 % more CPU.
  if add_job.flags is not null then
    v_flags := (select pg_catalog.jsonb_object_agg(flag, true) from pg_catalog.unnest(add_job.flags) as flag);
  end if;

  -- The insert looks up the task and the queue again in its own snapshot: a clean-up may have deleted them meanwhile.
  insert into {schema}._private_jobs as job (
    job_queue_id, task_id, payload, run_at, max_attempts, key, priority, flags
  )
  select
    v_queue_id,
    task.id,
    coalesce(add_job.payload, '{}'::json),
    coalesce(add_job.run_at, pg_catalog.now()),
    coalesce(add_job.max_attempts, 25),
    add_job.job_key,
    coalesce(add_job.priority, 0),
    v_flags
  from {schema}._private_tasks as task
  where task.id = v_task_id
    and not v_is_gone
    and (v_queue_id is null or exists (select from {schema}._private_job_queues as queue where queue.id = v_queue_id))
  -- Jobs with a key reach this insert only in the mode unsafe_dedupe.
  on conflict (key) do update
    set revision = job.revision + 1, updated_at = pg_catalog.now()
  returning * into v_job;
  if not found then
    raise exception using
      errcode = 'serialization_failure',
      message = 'the task or queue of a job was deleted by a clean-up while the job was being added',
      hint = 'Nothing was added. Repeat the call.';
  end if;

  -- A job that existed before was announced when it was added.
  if v_job.revision = 0 then
    -- By the id and the task, the workers agree on which of them asks for the job first.
    perform pg_catalog.pg_notify(
      'jobs:insert',
      pg_catalog.json_build_object(
        'r', pg_catalog.random(), 'count', 1, 'schema', {schema_text}, 'id', v_job.id, 'task', add_job.identifier
      )::text
    );
  end if;
  return v_job;
end
$atta$ language plpgsql volatile;
