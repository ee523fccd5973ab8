-- Deletes the jobs that succeeded, as long as they are still claimed by this worker as they were when it ran them: one that
-- was taken from it meanwhile, and that it has claimed again, has another attempt. Returns the ids of those.
-- $1 the worker, $2 the ids, $3 their attempt, $4 whether they had keys: one that has lost it was replaced, and its attempts
-- were set to the most. Locks those jobs; primary key. For jobs without a queue.
delete from {schema}._private_jobs as job
where job.id = any ($2::bigint[])
  and job.locked_by = $1::text
  and (job.attempts = $3::smallint or ($4::boolean and job.key is null))
returning job.id
