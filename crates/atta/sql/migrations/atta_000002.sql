-- The second of our own revisions: where the last pick of a fleet has ended. Sequences, since what a pick sets must be
-- visible before its transaction ends. Only a hint: a pick from the start finds what lies before it.
insert into {schema}._atta_migrations (id, breaking) values (2, false) on conflict do nothing;

-- The task and the priority of the last pick, the run_at of its last job in microseconds, and the id of that job.
create sequence if not exists {schema}._atta_scan_level minvalue -9223372036854775808 start 0;
create sequence if not exists {schema}._atta_scan_time minvalue -9223372036854775808 start 0;
create sequence if not exists {schema}._atta_scan_id minvalue -9223372036854775808 start 0;
