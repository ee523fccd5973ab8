-- Removes the benchmark's own database. {database} its quoted name. Waits a few seconds for connections to end.
drop database if exists {database}
