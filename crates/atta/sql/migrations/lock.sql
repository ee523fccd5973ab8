-- Only one migration runs at a time. Graphile's own waits here too: it inserts into this table before it changes
-- anything.
lock table {schema}.migrations in share row exclusive mode;
-- While this migration waits for a lock, every add waits behind it. Therefore it waits only briefly, then fails and
-- starts over.
set local lock_timeout = '200ms';
