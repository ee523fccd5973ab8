-- One migration at a time. Graphile's own waits here too: it inserts into this table before it changes anything.
lock table {schema}.migrations in share row exclusive mode;
-- Every add waits behind a lock that is waited for here. So it is not waited for long: the migration fails and begins again.
set local lock_timeout = '200ms';
