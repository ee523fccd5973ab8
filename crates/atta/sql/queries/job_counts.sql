'ready', count(job.id) filter (where state.name = 'ready'),
    'waiting', count(job.id) filter (where state.name = 'waiting'),
    'scheduled', count(job.id) filter (where state.name = 'scheduled'),
    'retrying', count(job.id) filter (where state.name = 'retrying'),
    'running', count(job.id) filter (where state.name = 'running'),
    'failed', count(job.id) filter (where state.name = 'failed')
