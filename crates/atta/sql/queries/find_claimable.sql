-- Locks the jobs that claim_by_job.sql would claim, and their queues, and returns them in their order. The transaction
-- then claims them one by one (mark_claimed.sql), because the database has refused a claim of several jobs. The
-- parameters are those of claim_by_job.sql.
with recursive {claimable_unqueued}, {claimable_by_job}, {claimable_taken}
select
  taken.id,
  taken.queue_id,
  (
    select task.identifier
    from task
    where task.id = taken.task_id
  ) as task_identifier
from taken
-- Always true: PostgreSQL must know the types of these two parameters, which nothing else here uses.
where $1::text is not null
  and $11::boolean is not null
order by taken.priority, taken.run_at, taken.id
