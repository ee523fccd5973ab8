-- Frees the jobs and queues that these workers have locked. $1 an object with worker_ids. The result is not used.
select {schema}.force_unlock_workers(argument.worker_ids)::text
from pg_catalog.json_to_record($1::text::json) as argument (worker_ids text[])
