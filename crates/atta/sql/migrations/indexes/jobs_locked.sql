-- The locked jobs: recovery reads them and no others. By their time, since an index by worker would cost every durable claim
-- twice as much.
create index{concurrently} if not exists _atta_jobs_locked_index
  on {jobs} (locked_at, id)
  where locked_at is not null;
