v_code text;
  v_message text;
  v_hint text;
  v_detail text;
  v_context text;
