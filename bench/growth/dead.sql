-- :jobs dead rows, which can't be removed as long as an older transaction is open: they were added and deleted, and lie
-- before all others.
insert into graphile_worker._private_jobs (task_id, payload, priority)
select task.id, '{}', -1
from graphile_worker._private_tasks as task, generate_series(1, :jobs)
where task.identifier = 'noop';
delete from graphile_worker._private_jobs
where priority = -1;
