-- A copy of many jobs may take longer than the role's usual limits. Nothing is to be found in other schemas than our own.
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
