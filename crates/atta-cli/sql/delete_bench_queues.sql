-- Removes the benchmark's queues, once their jobs are gone.
delete from {schema}._private_job_queues as queue
where queue.queue_name like 'atta\_bench\_%'
