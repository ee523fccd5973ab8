-- The payload of one job, which its claim did not return because it is large. $1 the id. Locks nothing; primary key.
select job.payload
from {schema}._private_jobs as job
where job.id = $1::bigint
