-- Until the transaction ends, the server sends and receives text in the encoding of the database, without a conversion.
-- Returns that encoding. No parameters. Locks nothing.
select
  pg_catalog.getdatabaseencoding()::text as encoding,
  pg_catalog.set_config('client_encoding', 'SQL_ASCII', true)
