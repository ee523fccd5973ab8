-- Deletes jobs that succeeded while this transaction held them. $1 where their rows lie: as long as we hold them, nobody
-- can move them, and going there saves a walk down the primary key. The number of rows is checked by the caller.
delete from {schema}._private_jobs as job
where job.ctid = any ($1::tid[])
