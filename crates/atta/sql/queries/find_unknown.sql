-- Finds claims of this worker that it does not know about: the reply to them was lost. Also finds queues that it has
-- locked without a job: the job was deleted before its claim was known.
-- $1 the worker, $2 the ids of the jobs that it knows, $3 the ids of their queues. The result has a row per job, and a row
-- per queue without a job, whose id is that of the queue with a minus. Only reads. The worker returns what was found by
-- return_claimed.sql, which ends only claims with exactly these times. So neither statement can end a newer claim, however
-- late the server executes it. The worker must not send a claim before the reply has arrived: its jobs would be unknown.
-- _atta_jobs_locked_index. Scans the table of queues, which has no index by worker.
select job.id, job.job_queue_id, job.locked_at
from {schema}._private_jobs as job
where job.locked_at is not null
  and job.locked_by = $1::text
  and job.id <> all ($2::bigint[])
union all
select - queue.id::bigint, queue.id, queue.locked_at
from {schema}._private_job_queues as queue
where queue.locked_at is not null
  and queue.locked_by = $1::text
  and queue.id <> all ($3::integer[])
  and queue.id <> all (array(
    select job.job_queue_id
    from {schema}._private_jobs as job
    where job.locked_at is not null
      and job.locked_by = $1::text
      and job.job_queue_id is not null
  ))
