-- Removes an index whose build was interrupted. It costs writes, and is used for nothing.
drop index{concurrently} if exists {schema}.{index};
