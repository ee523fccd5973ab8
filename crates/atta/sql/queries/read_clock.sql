-- The database's current time, not that of the start of the transaction. Locks nothing.
select clock_timestamp() as now
