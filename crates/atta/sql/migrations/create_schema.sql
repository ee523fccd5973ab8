-- Apart from bootstrap.sql, because `if not exists` too asks for CREATE on the database when the schema is there.
create schema {schema};
