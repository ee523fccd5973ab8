-- Waits until everybody who has looked up a queue has committed, so that what they added is seen; keeps others out.
set local lock_timeout = '2s';
lock table {schema}._private_job_queues in access exclusive mode;
