-- :jobs due jobs of the task noop with the flag that is forbidden to the workers of the benchmark.
insert into graphile_worker._private_jobs (task_id, payload, flags)
select task.id, '{}', '{"stuck": true}'
from graphile_worker._private_tasks as task, generate_series(1, :jobs)
where task.identifier = 'noop';
vacuum analyze graphile_worker._private_jobs;
