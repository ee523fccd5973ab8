-- The names of the states and the number of jobs in each, as members of a JSON object. The state of a job is `state.name`.
'ready', pg_catalog.count(job.id) filter (where state.name = 'ready'),
    'waiting', pg_catalog.count(job.id) filter (where state.name = 'waiting'),
    'scheduled', pg_catalog.count(job.id) filter (where state.name = 'scheduled'),
    'retrying', pg_catalog.count(job.id) filter (where state.name = 'retrying'),
    'running', pg_catalog.count(job.id) filter (where state.name = 'running'),
    'failed', pg_catalog.count(job.id) filter (where state.name = 'failed')
