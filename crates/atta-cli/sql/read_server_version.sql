-- The version of the server, as it says itself.
select current_setting('server_version')
