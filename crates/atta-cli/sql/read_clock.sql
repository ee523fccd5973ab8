-- The server's time, in seconds.
select extract(epoch from clock_timestamp())::double precision
