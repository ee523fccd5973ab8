-- Everything that the schema graphile_worker consists of, a line each, but for the bodies of its functions and for
-- what is ours alone. Two schemas with the same lines can't be told apart by a program that uses them.
with relation as (
  select pg_class.*
  from pg_class
  where pg_class.relnamespace = (select oid from pg_namespace where nspname = 'graphile_worker')
    and pg_class.relname not like '\_atta\_%'
)
select concat_ws(' ', 'relation', relname, relkind, 'rls', relrowsecurity, relforcerowsecurity, relacl, reloptions)
from relation
where relkind not in ('i', 'I')
union all
select concat_ws(
  ' ', 'column', relname,
  row_number() over (partition by relation.oid order by attnum),
  attname,
  format_type(atttypid, atttypmod),
  case when attnotnull then 'not null' end,
  'identity', attidentity, 'generated', attgenerated,
  pg_get_expr(adbin, adrelid),
  (select collname from pg_collation where pg_collation.oid = attcollation)
)
from relation
join pg_attribute on attrelid = relation.oid
left join pg_attrdef on adrelid = relation.oid and adnum = attnum
where relkind in ('r', 'v', 'c') and attnum > 0 and not attisdropped
union all
-- PostgreSQL 18 lists not null as a constraint too; the columns have it.
select concat_ws(' ', 'constraint', relname, conname, pg_get_constraintdef(pg_constraint.oid))
from relation
join pg_constraint on conrelid = relation.oid
where contype <> 'n'
union all
select concat_ws(' ', 'index', pg_get_indexdef(indexrelid), indisvalid)
from relation
join pg_index on indexrelid = relation.oid
union all
select concat_ws(
  ' ', 'sequence', relname, format_type(seqtypid, null), seqstart, seqincrement, seqmin, seqmax, seqcache, seqcycle,
  'of', (
    select refobjid::regclass || '.' || refobjsubid
    from pg_depend
    where pg_depend.objid = relation.oid and deptype = 'i'
  )
)
from relation
join pg_sequence on seqrelid = relation.oid
union all
select concat_ws(
  ' ', 'function', proname, pg_get_function_arguments(pg_proc.oid),
  'returns', pg_get_function_result(pg_proc.oid),
  'language', (select lanname from pg_language where pg_language.oid = prolang),
  'strict', proisstrict, 'volatile', provolatile, 'definer', prosecdef, 'parallel', proparallel, proconfig, proacl
)
from pg_proc
where pronamespace = (select oid from pg_namespace where nspname = 'graphile_worker')
  and proname not like '\_atta\_%'
union all
select concat_ws(' ', 'trigger', relname, pg_get_triggerdef(pg_trigger.oid))
from relation
join pg_trigger on tgrelid = relation.oid
where not tgisinternal
union all
select concat_ws(' ', 'policy', relname, polname)
from relation
join pg_policy on polrelid = relation.oid
union all
select concat_ws(' ', 'enum or domain', typname)
from pg_type
where typnamespace = (select oid from pg_namespace where nspname = 'graphile_worker')
  and typtype not in ('c', 'b')
union all
select concat_ws(' ', 'comment', description)
from relation
join pg_description on objoid = relation.oid and classoid = 'pg_class'::regclass
order by 1
