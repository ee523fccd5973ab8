-- Returns those of the given tasks of which no job was ever added and that no worker knows. $1 an object with
-- identifiers. Locks nothing; tasks_identifier_key, and our own small table of workers.
select name
from pg_catalog.json_to_record($1::text::json) as argument (identifiers text[])
cross join lateral pg_catalog.unnest(argument.identifiers) as name
where not exists (select from {schema}._private_tasks as task where task.identifier = name)
  and not exists (select from {schema}._atta_workers as worker where name = any (worker.task_identifiers))
