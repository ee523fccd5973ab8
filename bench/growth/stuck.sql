-- :jobs jobs that nobody can claim, before all others: half of them have a flag that is forbidden to the workers, half
-- are in queues that somebody has locked.
insert into graphile_worker._private_job_queues (queue_name, locked_at, locked_by)
select 'locked ' || number, now(), 'somebody'
from generate_series(1, 100) as number
on conflict (queue_name) do update set locked_at = now(), locked_by = 'somebody';
insert into graphile_worker._private_jobs (task_id, payload, priority, flags)
select task.id, '{}', -2, '{"stuck": true}'
from graphile_worker._private_tasks as task, generate_series(1, :jobs / 2)
where task.identifier = 'noop';
insert into graphile_worker._private_jobs (task_id, payload, priority, job_queue_id)
select task.id, '{}', -2, queue.id
from graphile_worker._private_tasks as task
cross join generate_series(1, :jobs / 200)
cross join graphile_worker._private_job_queues as queue
where task.identifier = 'noop' and queue.queue_name like 'locked %';
analyze graphile_worker._private_jobs;
