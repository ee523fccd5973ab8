-- Removes the benchmark's jobs, whatever became of them. Reads the whole table, and locks the rows that it deletes.
delete from {schema}._private_jobs as job
using {schema}._private_tasks as task
where task.id = job.task_id
  and task.identifier like 'atta\_bench\_%'
