-- Jobs of the task noop in Graphile Worker's tables. The checkpoint comes first, so that the following drain writes no
-- full pages to the WAL. :jobs is their number; 0 leaves the tables empty.
-- Cascade: the crate graphile_worker has another table that refers to this one.
set client_min_messages = warning;
truncate graphile_worker._private_jobs cascade;
checkpoint;
insert into graphile_worker._private_tasks (identifier)
values ('noop')
on conflict do nothing;
insert into graphile_worker._private_jobs (task_id, payload)
select task.id, '{}'
from graphile_worker._private_tasks as task, generate_series(1, :jobs)
where task.identifier = 'noop';
analyze graphile_worker._private_jobs;
