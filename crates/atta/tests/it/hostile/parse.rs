//! What our statements resolve to, according to their parse trees.

use std::collections::BTreeMap;
use std::future::poll_fn;

use testkit::{Database, fill_sql};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, NoTls};

use super::{make_public_hostile, read, sql_files};
use crate::sql_api::support::{run, value};

/// A session that prints the parse tree of each of its statements, also of those within functions.
struct Printing {
    client: Client,
    trees: mpsc::UnboundedReceiver<String>,
}

impl Printing {
    async fn on(db: &Database) -> Printing {
        let (client, mut connection) =
            tokio_postgres::connect(&db.direct_url(), NoTls).await.expect("the test server answers");
        let (sender, trees) = mpsc::unbounded_channel();
        // The connection task ends with its client.
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notice(notice) = message {
                    // At the end of the test, nobody reads any more.
                    let _ = sender.send(notice.detail().unwrap_or_default().to_owned());
                }
            }
        });
        run(
            &client,
            "set client_min_messages = log; set debug_print_rewritten = on; set debug_pretty_print = off",
        )
        .await;
        Printing { client, trees }
    }

    /// Runs statements, and returns the functions and operators that they resolved to.
    async fn resolved(&mut self, sql: &str) -> Vec<u32> {
        while self.trees.try_recv().is_ok() {}
        run(&self.client, sql).await;
        let mut ids = Vec::new();
        while let Ok(tree) = self.trees.try_recv() {
            ids.extend(ids_in(&tree));
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// The ids after the fields that name a function or an operator; `:opnos` has a list of them.
fn ids_in(tree: &str) -> Vec<u32> {
    let words: Vec<&str> = tree.split([' ', '(', ')', '}', '\n']).filter(|word| !word.is_empty()).collect();
    let mut ids = Vec::new();
    for (at, word) in words.iter().enumerate() {
        match *word {
            ":funcid" | ":opno" | ":aggfnoid" | ":winfnoid" | ":opfuncid" | ":eqop" | ":sortop" => {
                ids.extend(words.get(at + 1).and_then(|id| id.parse::<u32>().ok()));
            }
            ":opnos" => {
                let list = words[at + 1..].iter().skip_while(|word| **word == "o");
                ids.extend(list.map_while(|id| id.parse::<u32>().ok()));
            }
            _ => {}
        }
    }
    ids
}

/// The functions and operators that belong neither to PostgreSQL nor to our schema.
async fn strangers(client: &Client, ids: &[u32]) -> String {
    let ids = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let sql = format!(
        "select pg_catalog.string_agg(name, ', ') from (
           select oid::regprocedure::text as name from pg_proc
           where oid in (0{comma}{ids}) and pronamespace not in ('pg_catalog'::regnamespace, 'graphile_worker'::regnamespace)
           union all
           select oid::regoperator::text from pg_operator
           where oid in (0{comma}{ids}) and oprnamespace <> 'pg_catalog'::regnamespace
         ) as stranger",
        comma = if ids.is_empty() { "" } else { ", " },
    );
    value(client, &sql).await
}

/// The statements of the SQL files, by name, with all placeholders filled. Statements that can't be prepared are left out.
fn statements() -> BTreeMap<String, String> {
    let texts: BTreeMap<String, String> = sql_files()
        .iter()
        .filter(|path| {
            let folder = path.parent().and_then(|folder| folder.to_str()).unwrap_or_default();
            folder.ends_with("sql/queries") || folder.ends_with("atta-cli/sql")
        })
        .map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), read(path)))
        .collect();
    let is_statement = |text: &str| {
        let first = text.lines().find(|line| !line.starts_with("--")).unwrap_or_default();
        ["select", "with", "insert", "update", "delete"].iter().any(|word| first.starts_with(word))
    };
    texts
        .iter()
        .map(|(name, text)| (name.clone(), fill_sql(text)))
        .filter(|(_, text)| is_statement(text))
        .collect()
}

#[tokio::test]
async fn our_statements_use_no_functions_or_operators_of_the_schema_public() {
    let db = Database::migrated().await;
    let observer = db.client().await;
    make_public_hostile(&observer).await;
    let mut printing = Printing::on(&db).await;

    // Shows what would happen without a schema: this call resolves to public.
    let taken = "prepare taken as select array_agg(1::float8); deallocate all";
    let taken = printing.resolved(taken).await;
    assert!(strangers(&observer, &taken).await.contains("array_agg(double precision)"));

    let statements = statements();
    assert!(statements.len() > 50, "{} statements", statements.len());
    let mut all = 0;
    for (name, sql) in statements {
        let ids = printing.resolved(&format!("prepare statement as {sql}; deallocate all")).await;
        all += ids.len();
        assert_eq!(strangers(&observer, &ids).await, "", "{name}");
    }
    assert!(all > 300, "{all} functions and operators");
}

#[tokio::test]
async fn our_sql_functions_use_no_functions_or_operators_of_the_schema_public() {
    let db = Database::migrated().await;
    let observer = db.client().await;
    make_public_hostile(&observer).await;
    let mut printing = Printing::on(&db).await;
    let array = "'[1]', job_key := 'k'";
    let spec = |key: &str| format!("row('t', '[1]', 'q', null, 3::smallint, {key}, 1::smallint, array['f'])");
    let specs = format!("array[{}, {}]::graphile_worker.job_spec[]", spec("null"), spec("'l'"));
    let locked = "update graphile_worker._private_jobs set locked_at = pg_catalog.now(), locked_by = 'w'";
    for sql in [
        "select graphile_worker.add_job('t')".to_owned(),
        "select graphile_worker.add_job('t', '{}', 'q', pg_catalog.now(), 2, 'd', 1, array['f'], 'unsafe_dedupe')".to_owned(),
        format!("select graphile_worker.add_job('t', {array})"),
        format!("select graphile_worker.add_job('t', {array}, job_key_mode := 'preserve_run_at')"),
        r#"select graphile_worker.add_job('t', '["\u0000"]', job_key := 'k')"#.to_owned(),
        format!("select graphile_worker.add_jobs({specs})"),
        format!("select graphile_worker.add_jobs({specs}, true)"),
        "select graphile_worker.add_jobs(array[]::graphile_worker.job_spec[])".to_owned(),
        "select graphile_worker.reschedule_jobs(array[1, 2], pg_catalog.now(), 1, 2, 3)".to_owned(),
        "select graphile_worker.permanently_fail_jobs(array[1], 'x')".to_owned(),
        "select graphile_worker.complete_jobs(array[1, 2])".to_owned(),
        locked.to_owned(),
        format!("select graphile_worker.add_job('t', {array})"),
        "select graphile_worker.remove_job('k')".to_owned(),
        locked.to_owned(),
        "select graphile_worker.remove_job('l')".to_owned(),
        "select graphile_worker.force_unlock_workers(array['w'])".to_owned(),
    ] {
        let ids = printing.resolved(&sql).await;
        assert!(!ids.is_empty(), "{sql}");
        assert_eq!(strangers(&observer, &ids).await, "", "{sql}");
    }
    super::assert_nothing_was_called(&observer).await;
}
