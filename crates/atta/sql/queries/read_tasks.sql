-- The identifiers of tasks. $1 their ids, which are never given to another task. Locks nothing; primary key.
select task.id, task.identifier
from {schema}._private_tasks as task
where task.id = any ($1::integer[])
