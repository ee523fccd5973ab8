-- Removes the benchmark's tasks, once their jobs are gone.
delete from {schema}._private_tasks as task
where task.identifier like 'atta\_bench\_%'
