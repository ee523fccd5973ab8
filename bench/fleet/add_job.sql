-- For pgbench: one job per transaction, by the function.
select id from graphile_worker.add_job('noop', '{}'::json);
