-- Removes the jobs that the turn before added and did not run, and all dead rows. The jobs of the case itself stay.
delete from graphile_worker._private_jobs as job
using graphile_worker._private_tasks as task
where task.id = job.task_id
  and task.identifier = 'noop'
  and job.run_at <= now()
  and job.flags is null
  and job.job_queue_id is null;
vacuum graphile_worker._private_jobs;
checkpoint;
