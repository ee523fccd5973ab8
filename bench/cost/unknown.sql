-- :jobs due jobs of ten tasks that no worker of the benchmark has.
insert into graphile_worker._private_tasks (identifier)
select 'unknown ' || number
from generate_series(1, 10) as number
on conflict do nothing;
insert into graphile_worker._private_jobs (task_id, payload)
select task.id, '{}'
from generate_series(1, :jobs / 10), graphile_worker._private_tasks as task
where task.identifier like 'unknown %';
vacuum analyze graphile_worker._private_jobs;
