-- The newest of Graphile's revisions, in a table from before it was noted which are breaking.
select pg_catalog.max(migration.id) as newest
from {schema}.migrations as migration
