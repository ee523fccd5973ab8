-- Waits until all transactions that have looked up a queue have ended, so that their jobs are visible; blocks new ones.
set local lock_timeout = '2s';
lock table {schema}._private_job_queues in access exclusive mode;
