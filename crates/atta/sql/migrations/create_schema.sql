-- Separate from bootstrap.sql, because even `if not exists` needs CREATE on the database when the schema exists.
create schema {schema};
