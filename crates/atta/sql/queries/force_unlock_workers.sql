-- Frees what these workers hold. $1 an object with worker_ids. Returns nothing of interest.
select {schema}.force_unlock_workers(argument.worker_ids)::text
from pg_catalog.json_to_record($1::text::json) as argument (worker_ids text[])
