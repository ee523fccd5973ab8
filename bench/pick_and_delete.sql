-- The ceiling, for pgbench with --protocol=prepared: 1000 jobs are locked and deleted in one transaction, and not run.
-- The statements are those of a held claim, without the columns that a worker needs.
begin;
select coalesce(array_agg(id), '{}') as ids
from (
  select id
  from graphile_worker._private_jobs
  where is_available
  and run_at <= now()
  order by priority, run_at
  limit 1000
  for update skip locked
) picked \gset
delete from graphile_worker._private_jobs
where id = any(:ids::bigint[]);
commit;
