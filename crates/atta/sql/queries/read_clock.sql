-- The database's time, now and not at the start of a transaction. Locks nothing.
select clock_timestamp() as now
