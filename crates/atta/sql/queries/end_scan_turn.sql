-- Ends the turn that take_scan_turn.sql took, if it did. Locks nothing.
select case
  when pg_catalog.current_setting('atta.has_scan_turn', true) = 'true'::text
    then pg_catalog.pg_advisory_unlock(1635021921, pg_catalog.hashtext({schema_text}))
end as has_ended
