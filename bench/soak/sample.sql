-- The values that a sample of the soak takes from the database: one name and number per line. Sizes are in bytes.
select 'jobs_table_bytes', pg_table_size('graphile_worker._private_jobs')
union all
select 'index_bytes ' || relname, pg_relation_size(pg_class.oid)
from pg_index
join pg_class on pg_class.oid = pg_index.indexrelid
where pg_index.indrelid = 'graphile_worker._private_jobs'::regclass
union all
select 'queues_table_bytes', pg_total_relation_size('graphile_worker._private_job_queues')
union all
select 'atta_tables_bytes', sum(pg_total_relation_size(oid))
from pg_class
where relnamespace = 'graphile_worker'::regnamespace
  and relkind = 'r'
  and relname like '\_atta\_%'
union all
select 'dead_rows', n_dead_tup
from pg_stat_user_tables
where relid = 'graphile_worker._private_jobs'::regclass
union all
select 'vacuums', autovacuum_count
from pg_stat_user_tables
where relid = 'graphile_worker._private_jobs'::regclass
union all
select 'connections', count(*)
from pg_stat_activity
where datname = current_database()
  and backend_type = 'client backend'
  and pid <> pg_backend_pid();
