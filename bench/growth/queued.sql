-- :jobs jobs in 10,000 queues.
set client_min_messages = warning;
truncate graphile_worker._private_jobs cascade;
checkpoint;
insert into graphile_worker._private_job_queues (queue_name)
select 'queue ' || number
from generate_series(1, 10000) as number
on conflict do nothing;
insert into graphile_worker._private_jobs (task_id, payload, job_queue_id)
select task.id, '{}', queue.id
from graphile_worker._private_tasks as task
cross join generate_series(1, :jobs / 10000)
cross join graphile_worker._private_job_queues as queue
where task.identifier = 'noop' and queue.queue_name like 'queue %';
analyze graphile_worker._private_jobs;
