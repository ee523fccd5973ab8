-- Permanently fails due jobs whose text the server can't send in UTF-8: one such job would make every claim fail. Such
-- text exists in databases with another encoding, which may store bytes that are not valid characters. The setting
-- atta.task_identifiers has the tasks as a JSON array, atta.forbidden_flags the forbidden flags. Afterwards the setting
-- atta.unreadable_jobs has the ids of the failed jobs as a JSON array. Reads the jobs in their order, a thousand at a
-- time. Stops ten thousand jobs after the first one that it failed. Replaces only the columns that can't be sent, by text
-- in which each byte that is not ASCII is written as a backslash and three octal digits: a payload becomes {"unreadable":
-- text}, and a flag gets that name. A key becomes null, since that text may be too long for a key, or the key of another
-- job; last_error has it. So the job can be listed, and no payload, key or flag is lost. Skips jobs whose change fails,
-- for example because of a constraint of the application. Locks the jobs that it fails, and skips those that are locked;
-- never waits. jobs_main_index.
do $atta$
declare
  v_encoding constant name := pg_catalog.getdatabaseencoding();
  v_task_ids integer[];
  v_forbidden text[];
  v_priority smallint := -32768;
  v_run_at timestamptz := '-infinity';
  v_id bigint := -9223372036854775808;
  v_ids bigint[];
  v_job_id bigint;
  v_job {schema}._private_jobs;
  v_has_payload boolean;
  v_has_key boolean;
  v_has_flags boolean;
  v_flags jsonb;
  v_flag record;
  v_failed bigint[] := '{}';
  v_batches_left integer := 10;
  v_error text;
begin
  select pg_catalog.array_agg(task.id)
  into v_task_ids
  from {schema}._private_tasks as task
  where task.identifier in (
    select wanted.identifier
    from pg_catalog.json_array_elements_text(pg_catalog.current_setting('atta.task_identifiers')::json) as wanted (identifier)
  );
  v_forbidden := array(
    select forbidden.flag
    from pg_catalog.json_array_elements_text(pg_catalog.current_setting('atta.forbidden_flags')::json) as forbidden (flag)
  );
  while v_batches_left > 0 loop
    v_ids := array(
      select job.id
      from {schema}._private_jobs as job
      where job.is_available = true
        and job.run_at <= pg_catalog.now()
        and job.task_id = any (v_task_ids)
        and (job.flags ?| v_forbidden) is not true
        and (job.priority, job.run_at, job.id) > (v_priority, v_run_at, v_id)
      order by job.priority, job.run_at, job.id
      limit 1000
    );
    exit when v_ids = '{}';
    begin
      perform pg_catalog.count(pg_catalog.convert_to(
        pg_catalog.concat(job.payload, job.last_error, job.key, job.flags, queue.queue_name), 'UTF8'
      ))
      from {schema}._private_jobs as job
      left join {schema}._private_job_queues as queue on queue.id = job.job_queue_id
      where job.id = any (v_ids);
    exception when untranslatable_character or character_not_in_repertoire or program_limit_exceeded then
      foreach v_job_id in array v_ids loop
        begin
          perform pg_catalog.convert_to(
            pg_catalog.concat(job.payload, job.last_error, job.key, job.flags, queue.queue_name), 'UTF8'
          )
          from {schema}._private_jobs as job
          left join {schema}._private_job_queues as queue on queue.id = job.job_queue_id
          where job.id = v_job_id;
        exception when untranslatable_character or character_not_in_repertoire or program_limit_exceeded then
          v_error := sqlerrm;
          begin
            select job.*
            into v_job
            from {schema}._private_jobs as job
            where job.id = v_job_id
              and job.is_available = true
            for update skip locked;
            continue when not found;
            v_has_payload := true;
            v_has_key := true;
            v_has_flags := true;
            begin
              perform pg_catalog.convert_to(v_job.payload::text, 'UTF8');
            exception when untranslatable_character or character_not_in_repertoire or program_limit_exceeded then
              v_has_payload := false;
            end;
            begin
              perform pg_catalog.convert_to(v_job.key, 'UTF8');
            exception when untranslatable_character or character_not_in_repertoire or program_limit_exceeded then
              v_has_key := false;
            end;
            begin
              perform pg_catalog.convert_to(v_job.flags::text, 'UTF8');
            exception when untranslatable_character or character_not_in_repertoire or program_limit_exceeded then
              v_has_flags := false;
            end;
            v_flags := v_job.flags;
            if not v_has_flags then
              v_flags := '{}';
              for v_flag in
                select each.key, each.value
                from pg_catalog.jsonb_each(v_job.flags) as each
              loop
                begin
                  perform pg_catalog.convert_to(v_flag.key, 'UTF8');
                exception when untranslatable_character or character_not_in_repertoire then
                  v_flag.key := pg_catalog.encode(pg_catalog.convert_to(v_flag.key, v_encoding), 'escape');
                end;
                begin
                  perform pg_catalog.convert_to(v_flag.value::text, 'UTF8');
                exception when untranslatable_character or character_not_in_repertoire then
                  v_flag.value := 'true';
                end;
                v_flags := v_flags || pg_catalog.jsonb_build_object(v_flag.key, v_flag.value);
              end loop;
            end if;
            update {schema}._private_jobs as job
            set
              attempts = job.max_attempts,
              last_error = pg_catalog.concat(
                'the text of this job can''t be sent to a worker in UTF-8: ',
                v_error,
                case when not v_has_key then
                  E'\nthe key was ' || pg_catalog.encode(pg_catalog.convert_to(job.key, v_encoding), 'escape')
                end
              ),
              payload = case
                when v_has_payload then job.payload
                else pg_catalog.json_build_object(
                  'unreadable', pg_catalog.encode(pg_catalog.convert_to(job.payload::text, v_encoding), 'escape')
                )
              end,
              key = case when v_has_key then job.key end,
              flags = v_flags,
              updated_at = pg_catalog.now()
            where job.id = v_job_id;
            v_failed := v_failed || v_job_id;
          exception when others then
            continue;
          end;
        end;
      end loop;
    end;
    select job.priority, job.run_at, job.id
    into v_priority, v_run_at, v_id
    from {schema}._private_jobs as job
    where job.id = v_ids[pg_catalog.cardinality(v_ids)];
    exit when not found;
    if v_failed <> '{}' then
      v_batches_left := v_batches_left - 1;
    end if;
  end loop;
  perform pg_catalog.set_config('atta.unreadable_jobs', pg_catalog.to_json(v_failed)::text, true);
end
$atta$
