-- Text from its bytes. $1 the bytes, in the encoding of the database. Fails if the server can't send it in UTF-8. Locks
-- nothing.
select pg_catalog.convert_from($1::bytea, pg_catalog.getdatabaseencoding())
