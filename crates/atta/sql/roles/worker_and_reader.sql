-- == the worker role: writes everything that a worker writes, and owns no table; and the reader role
grant select on all tables in schema {schema} to {worker}, {reader};
grant usage on all sequences in schema {schema} to {worker};
grant select, update on sequence {schema}._atta_scan_level, {schema}._atta_scan_time, {schema}._atta_scan_id to {worker};
grant execute on all functions in schema {schema} to {worker};

-- The tables have row level security without a policy, which hides all rows from everybody but their owner. An existing
-- policy is kept: creating one waits for every transaction that uses the table.
do $atta$
declare
  v_table record;
begin
  for v_table in
    select relation.oid, relation.relname as name
    from pg_class as relation
    join pg_namespace as namespace on namespace.oid = relation.relnamespace
    where namespace.nspname = {schema_text}
      and relation.relkind = 'r'
    order by relation.relname
  loop
    if v_table.name not in ('migrations', '_atta_migrations') then
      execute format(
        'grant %s on %I.%I to %I',
        case v_table.name
          when '_private_tasks' then 'insert, delete'
          when '_private_known_crontabs' then 'insert, update'
          else 'insert, update, delete'
        end,
        {schema_text}, v_table.name, {worker_text}
      );
    end if;
    if not exists (select from pg_policy where polrelid = v_table.oid and polname = {worker_text}) then
      execute format(
        'create policy %I on %I.%I to %I using (true) with check (true)',
        {worker_text}, {schema_text}, v_table.name, {worker_text}
      );
    end if;
    if not exists (select from pg_policy where polrelid = v_table.oid and polname = {reader_text}) then
      execute format(
        'create policy %I on %I.%I for select to %I using (true)',
        {reader_text}, {schema_text}, v_table.name, {reader_text}
      );
    end if;
  end loop;
end
$atta$;
