-- The rows that every case starts from, as a function, so that they are planned once. t: the time of the claims.
-- Workers: w1 and w2 live, w0 was declared dead, ws is stale, the row of wx is gone, node belongs to another tool.
create function public.reset_world(t timestamptz, is_plain boolean) returns void as $$
#variable_conflict use_column
begin
  perform set_config('session_replication_role', 'replica', true);
  delete from graphile_worker._private_jobs;
  delete from graphile_worker._private_job_queues;
  delete from graphile_worker._private_tasks;
  delete from graphile_worker._private_known_crontabs;
  delete from graphile_worker._atta_workers;
  delete from graphile_worker._atta_dead_workers;
  delete from graphile_worker._atta_crashes;
  delete from public.change;

  insert into graphile_worker._private_tasks (id, identifier) overriding system value values (1, 'a'), (2, 'unused');

  insert into graphile_worker._private_job_queues (id, queue_name, locked_at, locked_by) overriding system value
  select queue.id, queue.queue_name, queue.locked_at::timestamptz, queue.locked_by
  from (values
    (1, 'q', null, null),
    (2, 'q2', t, 'w1'),
    (3, 'q3', t, 'w0'),
    (4, 'unused', null, null),
    (5, 'q5', t - interval '5 hours', 'node'),
    (6, 'q6', t - interval '2 hours', 'w1')
  ) as queue (id, queue_name, locked_at, locked_by)
  where not is_plain or queue.id = 4;

  insert into graphile_worker._private_jobs (
    id, job_queue_id, task_id, run_at, created_at, attempts, max_attempts, key, locked_at, locked_by, flags, payload
  ) overriding system value
  select
    job.id, job.queue_id, 1, t, t, job.attempts, 3, job.key, job.locked_at::timestamptz, job.locked_by,
    job.flags::jsonb, '"old"'
  from (values
    (1, 1, 0, 'h', null, null, null),
    (2, 1, 0, null, null, null, null),
    (3, null, 0, null, null, null, null),
    (4, null, 0, 'k', null, null, null),
    (5, null, 1, 'r', t, 'w1', null),
    (6, 2, 1, null, t, 'w1', null),
    (7, null, 3, 'p', null, null, null),
    (8, 3, 1, null, t, 'w0', null),
    (9, 3, 0, null, null, null, null),
    (10, null, 1, null, t, 'w0', null),
    (11, 2, 0, null, null, null, null),
    (12, null, 0, null, null, null, '{"f": true}'),
    (13, 5, 1, 's', t - interval '5 hours', 'node', null),
    (14, 6, 1, null, t - interval '2 hours', 'w1', null),
    (15, null, 1, null, t, 'ws', null),
    (16, null, 1, null, t, 'wx', null)
  ) as job (id, queue_id, attempts, key, locked_at, locked_by, flags)
  where not is_plain or (job.queue_id is null and job.flags is null);

  insert into graphile_worker._atta_workers (
    id, host, pid, version, started_at, heartbeat_at, task_identifiers, slots, recovery_threshold, declared_dead_at
  ) values
    ('w1', 'host', 1, '0', t, clock_timestamp(), '{a}', 1, interval '1 hour', null),
    ('w2', 'host', 2, '0', t, now() + interval '1 day', '{a}', 1, interval '1 hour', null),
    ('w0', 'host', 3, '0', t, t, '{a}', 1, interval '1 millisecond', t),
    ('ws', 'host', 4, '0', t, t, '{a}', 1, interval '1 millisecond', null);
  insert into graphile_worker._atta_dead_workers (worker_id, found_at, recovery_threshold) values
    ('w0', t, interval '1 millisecond'),
    ('wx', t, interval '1 millisecond');

  perform setval('graphile_worker.jobs_id_seq1', 100);
  perform setval('graphile_worker.tasks_id_seq', 100);
  perform setval('graphile_worker.job_queues_id_seq', 100);
end
$$ language plpgsql;

create function public.heartbeat_of(worker text) returns timestamptz as
$$ select heartbeat_at from graphile_worker._atta_workers where id = worker $$ language sql;
