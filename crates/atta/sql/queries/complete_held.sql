-- Deletes jobs that succeeded while this transaction held them. $1 the ids. Primary key.
delete from {schema}._private_jobs as job
where job.id = any ($1::bigint[])
