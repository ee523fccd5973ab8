-- The server's time, in seconds.
select extract(epoch from pg_catalog.clock_timestamp())::double precision
