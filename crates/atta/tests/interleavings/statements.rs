//! The statements of the library as prepared statements of a session.

use testkit::fill_sql;
use tokio_postgres::Client;

const PICK_TYPES: &str = "text[], smallint[], timestamptz[], bigint[], bigint[], timestamptz, bigint, smallint, timestamptz, bigint";
const FLAGGED_TYPES: &str = "text[], smallint[], timestamptz[], bigint[], bigint[], timestamptz, bigint, smallint, timestamptz, bigint, text[]";
const CLAIM_TYPES: &str = "text, text[], text[], timestamptz, bigint, text[], smallint, timestamptz, bigint, bigint, boolean, bigint[]";
const LEVEL_TYPES: &str =
    "text, text, smallint, timestamptz, bigint, text[], timestamptz, bigint, timestamptz, bigint, boolean";
const FAIL_TYPES: &str =
    "text, bigint[], timestamptz[], integer[], text[], text[], float8[], timestamptz[], boolean[]";

macro_rules! statement {
    ($name:literal, $types:expr) => {
        ($name, $types, include_str!(concat!("../../sql/queries/", $name, ".sql")))
    };
}

/// Name, types of the parameters, and text.
const STATEMENTS: [(&str, &str, &str); 44] = [
    statement!("add_job", "text"),
    statement!("add_job_deduped", "text"),
    statement!("add_jobs", "text"),
    statement!("schedule_cron_jobs", "text, timestamptz, text[]"),
    statement!("remove_job", "text"),
    statement!("complete_jobs", "text"),
    statement!("permanently_fail_jobs", "text"),
    statement!("reschedule_jobs", "text"),
    statement!("retry_jobs", "text"),
    statement!("unlock_jobs", "text"),
    statement!("force_unlock_workers", "text"),
    statement!("claim_by_job", CLAIM_TYPES),
    statement!("claim_by_queue", CLAIM_TYPES),
    statement!("claim_level", LEVEL_TYPES),
    statement!("find_claimable", CLAIM_TYPES),
    statement!("mark_claimed", "text, bigint, integer, timestamptz"),
    statement!("pick_jobs", PICK_TYPES),
    statement!("pick_flagged_jobs", FLAGGED_TYPES),
    statement!("pick_level", "text, smallint, timestamptz, bigint, timestamptz, bigint, timestamptz, bigint"),
    statement!("complete_held", "tid[]"),
    statement!("fail_held", "bigint[], text[], text[], float8[], timestamptz[], boolean[]"),
    statement!("promote_held", "text, bigint[]"),
    statement!("postpone_held", "bigint[], float8"),
    statement!("promote_untouched", "text, bigint[], smallint[], integer[], timestamptz[]"),
    statement!("complete_claim", "text, bigint[], timestamptz"),
    statement!("complete_claimed", "text, bigint[], timestamptz[]"),
    statement!("complete_many_claimed", "text, bigint[], timestamptz[]"),
    statement!("complete_claimed_queued", "text, bigint[], timestamptz[], integer[]"),
    statement!("fail_claimed", FAIL_TYPES),
    statement!("return_claimed", "text, bigint[], timestamptz[], integer[], float8"),
    statement!("find_unknown", "text, bigint[], integer[]"),
    statement!("refresh_locks", "text, bigint[]"),
    statement!("register_worker", "text, text, integer, text, text[], integer, float8"),
    statement!("heartbeat", "text"),
    statement!("deregister_worker", "text"),
    statement!("declare_dead", "text, float8, float8, timestamptz"),
    statement!("recover_workers", "bigint, bigint, boolean, float8"),
    statement!("forget_workers", ""),
    statement!("sweep_stale_locks", ""),
    statement!("delete_permafailed_jobs", ""),
    statement!("delete_unused_tasks", "text[]"),
    statement!("delete_unused_job_queues", ""),
    // These two are several statements, and are sent as they are.
    statement!("lock_tasks", "-"),
    statement!("lock_job_queues", "-"),
];

/// A function that users call, and that no statement of the library calls.
const RECOVER_FUNCTION: &str = "prepare recover_function (text[]) as \
    select id from graphile_worker._atta_recover_dead_worker_jobs($1) as id";

/// Prepares all statements under their names.
pub(crate) async fn prepare_all(client: &Client) {
    for (name, _, _) in STATEMENTS.iter().filter(|(_, types, _)| *types != "-") {
        prepare(client, name, |sql| sql).await;
    }
    client.batch_execute(RECOVER_FUNCTION).await.unwrap();
}

/// Prepares a statement; `change` may manipulate its text, for the tests of the checks.
pub(crate) async fn prepare(client: &Client, name: &str, change: impl Fn(String) -> String) {
    let (_, types, sql) = STATEMENTS.iter().find(|(known, ..)| *known == name).expect("a statement");
    let types = if types.is_empty() { String::new() } else { format!("({types})") };
    let prepare = format!("prepare {name} {types} as {}", change(fill_sql(sql)));
    client.batch_execute(&prepare).await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
}

/// The text that runs a statement.
pub(crate) fn execute(name: &str, arguments: &str) -> String {
    match STATEMENTS.iter().find(|(known, types, _)| *known == name && *types == "-") {
        Some((_, _, sql)) => fill_sql(sql),
        None if arguments.is_empty() => format!("execute {name}"),
        None => format!("execute {name}({arguments})"),
    }
}

/// The name and the arguments of the statement in a text that `execute` returned; names of JSON values are kept as they
/// are. None: the text runs no prepared statement.
pub(crate) fn parse(text: &str) -> Option<(&str, Vec<String>)> {
    let (_, call) = text.rsplit_once("execute ")?;
    let Some((name, rest)) = call.split_once('(') else { return Some((call.trim(), Vec::new())) };
    let mut arguments = vec![String::new()];
    let mut is_quoted = false;
    for character in rest.strip_suffix(')').unwrap_or(rest).chars() {
        match character {
            '\'' => is_quoted = !is_quoted,
            ',' if !is_quoted => arguments.push(String::new()),
            ' ' if !is_quoted => {}
            other => arguments.last_mut().expect("it begins with one").push(other),
        }
    }
    Some((name, arguments))
}

/// The elements of an array in the text form of PostgreSQL, without quotes: `{1,2}`.
pub(crate) fn elements(array: &str) -> Vec<&str> {
    let inner = array.trim_start_matches('{').trim_end_matches('}');
    inner.split(',').filter(|element| !element.is_empty()).map(|element| element.trim_matches('"')).collect()
}
