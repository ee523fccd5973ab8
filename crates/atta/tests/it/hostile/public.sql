-- Functions and operators that hide those of pg_catalog. {names} the names of functions, as text literals. The search
-- path is set first, because otherwise this session would call them itself.
set search_path = pg_catalog;

create sequence public.hostile_calls;
grant all on sequence public.hostile_calls to public;

do $$
declare
  body constant text := $f$ language plpgsql as $x$
    begin
      perform pg_catalog.nextval('public.hostile_calls');
      raise exception 'something in public was called';
    end $x$ $f$;
  types constant text[] := array[
    'text', 'name', 'varchar', 'smallint', 'integer', 'bigint', 'double precision', 'numeric', 'boolean', 'timestamptz',
    'timestamp', 'interval', 'json', 'jsonb', 'oid', 'tid', '"char"', 'regclass', 'regnamespace', 'pg_lsn', 'text[]', 'integer[]', 'bigint[]',
    'smallint[]', 'timestamptz[]', 'boolean[]', 'name[]', 'oid[]'
  ];
  few constant text[] := array['text', 'integer', 'bigint', 'double precision', 'boolean'];
  operators constant text[] := array[
    '=', '<>', '<', '>', '<=', '>=', '+', '-', '*', '/', '||', '->', '->>', '?|', '~~', '~', '!~'
  ];
  function record;
  a text; b text; c text; d text; o text;
  number integer := 0;
begin
  set local client_min_messages = error;
  -- Operators for every pair of types.
  foreach a in array types loop
    foreach b in array types loop
      number := number + 1;
      execute format('create function public.hostile_%s(a %s, b %s) returns boolean %s', number, a, b, body);
      foreach o in array operators loop
        execute format(
          'create operator public.%s (leftarg = %s, rightarg = %s, function = public.hostile_%s)', o, a, b, number
        );
      end loop;
    end loop;
  end loop;
  -- Functions with the types of those in pg_catalog. Where these accept any type, or fewer types, also with other
  -- types.
  for function in
    select
      proname as name,
      array_agg(distinct oidvectortypes(proargtypes)) as signatures,
      max(pronargs) as most,
      bool_or(provariadic <> 0) as is_variadic
    from pg_proc
    where pronamespace = 'pg_catalog'::regnamespace
      and proname in ({names})
      and proname not in ('any', 'all', 'in', 'row', 'array', 'values')
      and prorettype not in ('internal'::regtype, 'trigger'::regtype)
      and not 'internal'::regtype = any (proargtypes::oid[])
    group by proname
  loop
    foreach a in array function.signatures loop
      begin
        execute format('create function public.%I(%s) returns text %s', function.name, a, body);
      exception when others then
        -- This language does not support functions with this type.
        null;
      end;
    end loop;
    foreach a in array types loop
      execute format('create or replace function public.%I(a %s) returns text %s', function.name, a, body);
      continue when function.most < 2 and not function.is_variadic;
      foreach b in array types loop
        execute format('create or replace function public.%I(a %s, b %s) returns text %s', function.name, a, b, body);
      end loop;
    end loop;
    continue when not function.is_variadic;
    foreach a in array few loop
      foreach b in array few loop
        foreach c in array few loop
          execute format('create or replace function public.%I(%s, %s, %s) returns text %s', function.name, a, b, c, body);
          foreach d in array few loop
            execute format(
              'create or replace function public.%I(%s, %s, %s, %s) returns text %s', function.name, a, b, c, d, body
            );
          end loop;
        end loop;
      end loop;
    end loop;
  end loop;
end
$$;
