-- The newest of Graphile's revisions, in an old table that does not mark the breaking ones.
select pg_catalog.max(migration.id) as newest
from {schema}.migrations as migration
