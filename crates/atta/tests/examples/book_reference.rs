//! The pages of the book about SQL, events and hooks are made from the code.
//!
//! After a change, write them anew: `cargo xtask book --write`.

use testkit::Database;
use testkit::book::{Item, assert_generated, cell, items, read};
use tokio_postgres::Client;

/// The functions of the SQL API, with their parameters.
const FUNCTIONS: &str = "
  select proc.proname::text,
    pg_get_function_result(proc.oid),
    array(
      select concat_ws(
        ' | ',
        format('`%s`', proc.proargnames[number]),
        format('`%s`', format_type(type.oid, null)),
        coalesce(
          '`' || regexp_replace(pg_get_function_arg_default(proc.oid, number::int), '::.*$', '') || '`',
          'required'
        )
      )
      from unnest(proc.proargtypes::oid[]) with ordinality as type (oid, number)
      order by number
    )
  from pg_proc as proc
  where proc.pronamespace = 'graphile_worker'::regnamespace
    and proc.proname not like '\\_%'
    and proc.prorettype <> 'trigger'::regtype
  order by proc.proname";

/// The columns of a view or a type.
const COLUMNS: &str = "
  select attname::text, format_type(atttypid, atttypmod)
  from pg_attribute
  where attrelid = format('graphile_worker.%I', $1::text)::regclass and attnum > 0 and not attisdropped
  order by attnum";

#[tokio::test]
async fn the_page_about_sql_is_that_of_a_migrated_database() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let mut page = String::new();
    for row in client.query(FUNCTIONS, &[]).await.expect("the functions are read") {
        let (name, result, parameters): (String, String, Vec<String>) = (row.get(0), row.get(1), row.get(2));
        page.push_str(&format!("## {name}\n\n{}\n\n", head_of(&name)));
        page.push_str("| parameter | type | default |\n|---|---|---|\n");
        parameters.iter().for_each(|parameter| page.push_str(&format!("| {parameter} |\n")));
        page.push_str(&format!("\nReturns `{result}`.\n\n"));
    }
    page.push_str(&format!("## The type job_spec\n\n{}\n", columns(&client, "job_spec").await));
    page.push_str(&format!("## The view jobs\n\n{}", columns(&client, "jobs").await));
    assert_generated("docs/reference/sql.md", &page);
}

/// The first paragraph of the comment at the head of a function's file: the text for users.
fn head_of(function: &str) -> String {
    let source = read(&format!("crates/atta/sql/functions/{function}.sql"));
    let lines = source.lines().map_while(|line| line.strip_prefix("-- "));
    lines.collect::<Vec<_>>().join(" ")
}

async fn columns(client: &Client, name: &str) -> String {
    let rows = client.query(COLUMNS, &[&name]).await.expect("the columns are read");
    let row = |row: &tokio_postgres::Row| {
        format!("| `{}` | `{}` |\n", row.get::<_, String>(0), row.get::<_, String>(1))
    };
    format!("| column | type |\n|---|---|\n{}", rows.iter().map(row).collect::<String>())
}

#[test]
fn the_page_about_events_is_that_of_the_code() {
    let worker = items(&read("crates/atta/src/event.rs"), "pub enum WorkerEvent {");
    let cron = items(&read("crates/atta/src/cron/schedule.rs"), "pub enum CronEvent {");
    let page = format!("## WorkerEvent\n\n{}\n## CronEvent\n\n{}", variants(&worker), variants(&cron));
    assert_generated("docs/reference/events.md", &page);
}

fn variants(items: &[Item]) -> String {
    let row = |item: &Item| {
        let name = item.code.split([' ', '(', ',']).next().unwrap_or_default();
        let field = |field: &Item| {
            let name = field.code.split(':').next().unwrap_or_default();
            format!("`{name}`: {}", plain(&field.doc))
        };
        let fields: Vec<String> = item.fields.iter().map(field).collect();
        format!("| `{name}` | {} | {} |\n", plain(&item.doc), fields.join("<br>"))
    };
    format!("| event | meaning | fields |\n|---|---|---|\n{}", items.iter().map(row).collect::<String>())
}

#[test]
fn the_page_about_hooks_is_that_of_the_code() {
    let hooks = items(&read("crates/atta/src/event.rs"), "pub trait Hooks: Send + Sync + 'static {");
    let row = |item: &Item| {
        let code = item.code.replace("'a ", "");
        let (name, rest) =
            code.strip_prefix("fn ").and_then(|code| code.split_once('<')).expect("a function");
        let (_, arguments) = rest.split_once("&self").expect("it is a method");
        let (arguments, _) = arguments.split_once(") ->").expect("it returns a future");
        let arguments =
            arguments.split(", ").map(|one| one.trim_start_matches(['_', ',']).trim_end_matches(','));
        let arguments: Vec<String> =
            arguments.filter(|one| !one.is_empty()).map(|one| format!("`{one}`")).collect();
        // A method that does nothing has arguments with an underscore.
        format!("| `{name}` | {} | {} |\n", arguments.join(", "), plain(&item.doc).replace("`_", "`"))
    };
    let rows: String = hooks.iter().map(row).collect();
    assert_generated(
        "docs/reference/hooks.md",
        &format!("| hook | arguments | when it is called |\n|---|---|---|\n{rows}"),
    );
}

/// A doc comment for a cell of a table, without links that only rustdoc understands.
fn plain(doc: &str) -> String {
    let mut text = String::new();
    let mut rest = doc;
    while let Some((before, link)) = rest.split_once("[`") {
        let Some((name, after)) = link.split_once("`]") else { break };
        text.push_str(&format!("{before}`{name}`"));
        rest =
            after.strip_prefix('(').and_then(|after| after.split_once(')')).map_or(after, |(_, after)| after);
    }
    cell(&(text + rest))
}
