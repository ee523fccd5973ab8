'ready', pg_catalog.count(job.id) filter (where state.name = 'ready'),
    'waiting', pg_catalog.count(job.id) filter (where state.name = 'waiting'),
    'scheduled', pg_catalog.count(job.id) filter (where state.name = 'scheduled'),
    'retrying', pg_catalog.count(job.id) filter (where state.name = 'retrying'),
    'running', pg_catalog.count(job.id) filter (where state.name = 'running'),
    'failed', pg_catalog.count(job.id) filter (where state.name = 'failed')
