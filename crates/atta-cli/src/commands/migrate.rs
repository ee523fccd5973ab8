//! `atta migrate`: installs or upgrades the schema, or prints the SQL for it.

use std::io::IsTerminal;

use atta::{MigrationPlan, Schema};
use tokio_postgres::Client;

use crate::args::Migrate;
use crate::connect::connect;
use crate::output::ask::confirm;
use crate::output::{Failure, print, warn};

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
    warn_of_what_stops(&client, &schema, args.yes).await?;
    let plan = atta::migrate(&mut client, &schema).await?;
    print(&summary(&plan, &schema));
    Ok(())
}

/// Warns which releases of graphile-worker stop working. On a terminal, asks whether to go on; without one, running the
/// command counts as consent.
async fn warn_of_what_stops(client: &Client, schema: &Schema, yes: bool) -> Result<(), Failure> {
    // Problems with the schema are reported by the migration itself, with the missing privilege.
    let Ok(plan) = atta::plan_migration(client, schema).await else { return Ok(()) };
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
