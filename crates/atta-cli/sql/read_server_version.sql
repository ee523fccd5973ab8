-- The version of the server, as it says itself.
select pg_catalog.current_setting('server_version')
