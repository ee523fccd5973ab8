-- Claims jobs durably that were held until their connection was lost, unless somebody else has had them since, or has
-- given them another payload by their key: that is work which nobody has begun. Jobs that are this worker's already are
-- taken over: by an earlier try whose reply was lost, or by a claim of this worker that it returns, since it knows the jobs.
-- $1 the worker, $2 the ids, $3 their attempts and $4 their revisions as they were.
-- Returns the ids of those that are this worker's, and when they were claimed. Locks those jobs; primary key.
update {schema}._private_jobs as job
set
  attempts = held.attempts + 1,
  locked_by = $1::text,
  locked_at = now()
from unnest($2::bigint[], $3::smallint[], $4::integer[]) as held (id, attempts, revision)
where job.id = held.id
  and job.revision = held.revision
  and (
    (job.locked_at is null and job.attempts = held.attempts)
    or (job.locked_by = $1::text and job.attempts = held.attempts + 1)
  )
returning job.id, job.locked_at
