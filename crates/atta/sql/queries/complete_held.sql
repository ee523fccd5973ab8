-- Deletes jobs that succeeded while this transaction held them. $1 the places of their rows (ctid). While this
-- transaction holds the rows, no other can move them, and using the place saves a search in the primary key. The caller
-- checks the number of rows.
delete from {schema}._private_jobs as job
where job.ctid = any ($1::tid[])
