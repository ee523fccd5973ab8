-- Jobs of the kind noop in River's table; see fill_graphile.sql.
set client_min_messages = warning;
truncate river_job cascade;
checkpoint;
insert into river_job (kind, args, max_attempts, state, queue, priority)
select 'noop', '{}', 25, 'available', 'default', 1
from generate_series(1, :jobs);
analyze river_job;
