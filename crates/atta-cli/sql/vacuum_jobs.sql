-- Takes away what the last measurement left behind, so that the next one does not walk over it. Can't be in a
-- transaction; needs to own the table.
vacuum {schema}._private_jobs
