//! `atta migrate`: the schema, brought to where it should be, or the SQL for it.

use atta::{MigrationPlan, Schema};

use crate::args::Migrate;
use crate::connect::connect;
use crate::output::{Failure, print};

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
    let plan = atta::migrate(&mut client, &schema).await?;
    print(&summary(&plan, &schema));
    Ok(())
}

fn summary(plan: &MigrationPlan, schema: &Schema) -> String {
    let name = schema.quoted();
    let mut text = match (plan.is_empty(), plan.from_revision()) {
        (true, _) => format!("schema {name} is up to date\n"),
        (false, None) => format!("schema {name} installed\n"),
        (false, Some(from)) if from < atta::GRAPHILE_REVISION => {
            format!("schema {name} upgraded from revision {from} to {}\n", atta::GRAPHILE_REVISION)
        }
        (false, Some(_)) => format!("schema {name} put right\n"),
    };
    if let Some(warning) = plan.warning() {
        text.push_str(&format!("warning: {warning}\n"));
    }
    for title in plan.titles() {
        text.push_str(&format!("  {title}\n"));
    }
    text
}
