-- :jobs more jobs, after all others.
insert into graphile_worker._private_jobs (task_id, payload)
select task.id, '{}'
from graphile_worker._private_tasks as task, generate_series(1, :jobs)
where task.identifier = 'noop';
analyze graphile_worker._private_jobs;
