-- The condition "others" does not include query_canceled and assert_failure.
exception when query_canceled or assert_failure or others then
  get stacked diagnostics
    v_code = returned_sqlstate,
    v_message = message_text,
    v_hint = pg_exception_hint,
    v_detail = pg_exception_detail,
    v_context = pg_exception_context;
  raise log using
    message = format('adding as %s failed: %s', quote_ident(session_user), v_message),
    detail = concat_ws(e'\n', v_code, nullif(v_detail, ''), v_context);
  if not (
    v_code like 'GWB%'
    or v_code like '53%'
    or v_code in ('21000', '40001', '40P01', '55P03', '57014', 'P0001')
    or (v_code in ('22003', '22023') and v_hint <> '')
  ) then
    v_message := 'the database refused this';
    v_hint := 'The reason is in the log of the server, for the owner of the tables.';
  end if;
  if v_hint = '' then
    raise exception using errcode = v_code, message = v_message;
  end if;
  raise exception using errcode = v_code, message = v_message, hint = v_hint;
