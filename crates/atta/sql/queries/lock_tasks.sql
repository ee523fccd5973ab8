-- Waits until all transactions that have looked up a task have ended, so that their jobs are visible; blocks new ones.
set local lock_timeout = '2s';
lock table {schema}._private_tasks in access exclusive mode;
