-- The columns of a job filter, for json_to_record.
ids bigint[],
  states text[],
  task_identifier text,
  queue_name text,
  key text,
  error_contains text,
  created_before timestamptz,
  failed_since timestamptz,
  locked_before timestamptz,
  locked_by text,
  after_id bigint,
  newest_first boolean
