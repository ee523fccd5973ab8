-- For pgbench: one job per transaction, by a plain insert. Nobody is notified.
insert into graphile_worker._private_jobs (task_id, payload)
select id, '{}'
from graphile_worker._private_tasks
where identifier = 'noop';
