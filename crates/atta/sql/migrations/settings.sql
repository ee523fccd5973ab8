-- Copying many jobs may take longer than the role's usual limits. Names must not be found in other people's schemas.
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
