-- One migration at a time. Graphile's own waits here too: it inserts into this table before it changes anything.
lock table {schema}.migrations in share row exclusive mode;
