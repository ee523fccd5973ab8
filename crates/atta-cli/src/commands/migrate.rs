//! `atta migrate`: installs or upgrades the schema, or prints the SQL for it.

use std::io::IsTerminal;

use atta::{MigrationPlan, Schema};
use tokio_postgres::Client;

use crate::args::Migrate;
use crate::connect::connect;
use crate::output::ask::confirm;
use crate::output::{Failure, hint, print, warn};

pub(crate) async fn run(args: Migrate) -> Result<(), Failure> {
    let schema = Schema::new(args.connection.schema.as_str())?;
    if args.print {
        print(&atta::migration_sql(&schema));
        return Ok(());
    }
    if args.print_roles {
        let prefix = args.role_prefix.as_deref().unwrap_or(schema.name());
        print(&atta::roles_sql(&schema, prefix)?);
        return Ok(());
    }
    let mut client = connect(&args.connection).await?;
    if args.dry_run {
        print(&atta::plan_migration(&client, &schema).await?.to_string());
        return Ok(());
    }
    // Problems with the schema are reported by the migration itself, with the missing privilege.
    if let Ok(plan) = atta::plan_migration(&client, &schema).await
        && !plan.is_empty()
    {
        warn_of_owner(&client, &schema).await;
        warn_of_what_stops(&plan, &schema, args.yes)?;
    }
    let plan = atta::migrate(&mut client, &schema).await?;
    print(&summary(&plan, &schema));
    Ok(())
}

/// Warns if another role owns the schema: then its owner can't use the tables that this role creates.
async fn warn_of_owner(client: &Client, schema: &Schema) {
    let sql = include_str!("../../sql/read_schema_owner.sql");
    // If this query fails, the migration fails for the same reason.
    let Ok(Some(row)) = client.query_opt(sql, &[&schema.name()]).await else { return };
    let (owner, role): (String, String) = (row.get("owner"), row.get("role"));
    if owner == role {
        return;
    }
    let name = schema.quoted();
    warn(&format!(
        "schema {name} belongs to role {owner:?}, and what this command creates in it will belong to role {role:?}"
    ));
    hint(&format!("if the owner of the schema should own its tables too, connect as role {owner:?}"));
}

/// Warns which releases of graphile-worker stop working. On a terminal, asks whether to go on; without one, running the
/// command counts as consent.
fn warn_of_what_stops(plan: &MigrationPlan, schema: &Schema, yes: bool) -> Result<(), Failure> {
    let (Some(from), Some(stops)) = (plan.from_revision(), plan.stops_working()) else { return Ok(()) };
    let (name, to) = (schema.quoted(), atta::GRAPHILE_REVISION);
    warn(&format!("schema {name} will be migrated from revision {from} of Graphile Worker to {to}: {stops}"));
    if yes || !std::io::stdin().is_terminal() {
        return Ok(());
    }
    confirm(&format!("migrate schema {name}"), false)
}

fn summary(plan: &MigrationPlan, schema: &Schema) -> String {
    let name = schema.quoted();
    let mut text = match (plan.is_empty(), plan.from_revision()) {
        (true, _) => format!("schema {name} is up to date\n"),
        (false, None) => format!("schema {name} installed\n"),
        (false, Some(from)) if from < atta::GRAPHILE_REVISION => {
            format!("schema {name} upgraded from revision {from} to {}\n", atta::GRAPHILE_REVISION)
        }
        (false, Some(_)) => format!("schema {name} repaired\n"),
    };
    if let Some(warning) = plan.warning() {
        text.push_str(&format!("warning: {warning}\n"));
    }
    for title in plan.titles() {
        text.push_str(&format!("  {title}\n"));
    }
    text
}
