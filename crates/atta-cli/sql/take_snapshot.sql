-- Takes a snapshot, which a repeatable read transaction keeps until its end: nothing newer can be vacuumed meanwhile.
select pg_catalog.txid_current_snapshot()::text
