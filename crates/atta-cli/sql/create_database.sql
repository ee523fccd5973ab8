-- Makes the benchmark's own database. {database} its quoted name. Needs CREATEDB.
create database {database} template template0
