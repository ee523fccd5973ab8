-- A copy of many jobs may take longer than the role's usual limits.
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
