//! A role that may create objects in `public`, which is in everybody's search path: our statements never call one of
//! them.
//!
//! PostgreSQL chooses the function or operator whose argument types match best, wherever in the path it is. So `public`
//! gets one of each name that our SQL uses, for as many types as possible. `parse` finds out from the parse trees of
//! all statements what they resolve to; `calls` runs everything and checks that nothing in `public` was called.

mod calls;
mod parse;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tokio_postgres::Client;

use crate::sql_api::support::{run, value};

/// The files with our SQL.
fn sql_files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [
        "sql/queries",
        "sql/fragments",
        "sql/functions",
        "sql/migrations",
        "sql/migrations/indexes",
        "sql/roles",
        "../atta-cli/sql",
    ];
    let mut files = Vec::new();
    for folder in folders {
        let entries = std::fs::read_dir(root.join(folder)).expect("a folder of SQL");
        files.extend(entries.map(|entry| entry.expect("an entry").path()));
    }
    files.retain(|path| path.extension().is_some_and(|extension| extension == "sql"));
    files.sort();
    files
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a file of SQL")
}

/// Every word that is followed by a parenthesis: the functions, and some other words, which do no harm.
fn called_names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in sql_files() {
        let text = read(&file);
        for (at, _) in text.match_indices('(') {
            let is_of_name = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '_';
            let name: String = text[..at].chars().rev().take_while(is_of_name).collect();
            names.insert(name.chars().rev().collect());
        }
    }
    names
}

/// Puts functions and operators into `public`, and leaves this session without it in its path. They count their calls in a sequence, which no rollback resets, and fail.
async fn make_public_hostile(client: &Client) {
    let names: Vec<String> = called_names().into_iter().collect();
    let list = names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    let script = include_str!("hostile/public.sql").replace("{names}", &list);
    run(client, &script).await;
    let made = "select count(*) from pg_proc where pronamespace = 'public'::regnamespace";
    assert!(value(client, made).await.parse::<u32>().unwrap() > 3000, "public is not hostile enough");
}

/// Checks that nothing in `public` was called, and that none of our objects depends on it.
async fn assert_nothing_was_called(client: &Client) {
    assert_eq!(value(client, "select is_called from public.hostile_calls").await, "false");
    let dependent = "select coalesce(string_agg(pg_describe_object(classid, objid, objsubid), ', '), '')
        from pg_depend
        where refclassid in ('pg_proc'::regclass, 'pg_operator'::regclass)
          and classid not in ('pg_proc'::regclass, 'pg_operator'::regclass)
          and refobjid in (
            select oid from pg_proc where pronamespace = 'public'::regnamespace
            union all
            select oid from pg_operator where oprnamespace = 'public'::regnamespace
          )";
    assert_eq!(value(client, dependent).await, "");
}
