-- docs/operating/roles.md of atta describes what each role may do. Run this as the owner of the tables, with the right
-- to create roles and schemas, or as a superuser. It may be repeated, and should be after each migration: a new table
-- has no grants yet.
begin;
set local search_path = pg_catalog, pg_temp;
set local client_min_messages = warning;

-- == the roles themselves, as groups: they can't log in; the remaining statements run as the owner of the tables
do $atta$
declare
  v_owner text := (
    select pg_get_userbyid(relation.relowner)
    from pg_class as relation
    join pg_namespace as namespace on namespace.oid = relation.relnamespace
    where namespace.nspname = {schema_text}
      and relation.relname = '_private_jobs'
  );
  v_stranger text;
  v_role text;
begin
  if v_owner is null then
    raise exception using
      errcode = 'undefined_table',
      message = format('schema %I has no table of jobs', {schema_text}),
      hint = 'Install it first: atta migrate';
  end if;
  select pg_get_userbyid(namespace.nspowner)
  into v_stranger
  from pg_namespace as namespace
  where namespace.nspname = {add_schema_text}
    and pg_get_userbyid(namespace.nspowner) <> v_owner;
  if found then
    raise exception using
      errcode = 'duplicate_schema',
      message = format('schema %I already exists and belongs to role %I', {add_schema_text}, v_stranger),
      hint = 'Drop it, or use other names: atta migrate --print-roles --role-prefix NAME';
  end if;
  foreach v_role in array array[{producer_text}, {worker_text}, {reader_text}] loop
    if not exists (select from pg_roles where rolname = v_role) then
      execute format('create role %I nologin', v_role);
    end if;
  end loop;
  if not exists (select from pg_namespace where nspname = {add_schema_text}) then
    execute format('create schema %I authorization %I', {add_schema_text}, v_owner);
  end if;
  -- The schema may belong to somebody else than the tables.
  execute format('grant usage on schema %I to %I, %I', {schema_text}, {worker_text}, {reader_text});
  execute format('set local role %I', v_owner);
end
$atta$;
