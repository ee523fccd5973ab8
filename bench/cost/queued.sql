-- :jobs jobs of the task noop in 5,000 queues, due tomorrow.
insert into graphile_worker._private_job_queues (queue_name)
select 'queue ' || number
from generate_series(1, 5000) as number
on conflict do nothing;
insert into graphile_worker._private_jobs (task_id, payload, run_at, job_queue_id)
select task.id, '{}', now() + interval '1 day', queue.id
from graphile_worker._private_tasks as task
cross join generate_series(1, :jobs / 5000)
cross join graphile_worker._private_job_queues as queue
where task.identifier = 'noop' and queue.queue_name like 'queue %';
vacuum analyze graphile_worker._private_jobs;
