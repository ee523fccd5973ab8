-- Removes an index whose build was interrupted. It slows down writes, and no query uses it.
drop index{concurrently} if exists {schema}.{index};
