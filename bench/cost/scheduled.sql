-- :jobs jobs of the task noop that are due tomorrow.
insert into graphile_worker._private_jobs (task_id, payload, run_at)
select task.id, '{}', now() + interval '1 day' + number * interval '1 millisecond'
from graphile_worker._private_tasks as task, generate_series(1, :jobs) as number
where task.identifier = 'noop';
vacuum analyze graphile_worker._private_jobs;
