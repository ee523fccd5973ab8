//! The database in which the benchmark runs: a new one, or the given one on request; and its removal.

use std::time::{Duration, Instant};

use atta::{ConnectionSettings, Schema, WorkerUtils};
use tokio_postgres::Client;

use crate::args::Bench;
use crate::connect::{open, reason};
use crate::output::Failure;

/// How long the server may take to end a closed connection.
const LONGEST_END: Duration = Duration::from_secs(10);

/// Before PostgreSQL 15, statistics went to a process that published them every half second.
const COLLECTOR: Duration = Duration::from_millis(700);

pub(super) struct Site {
    schema: Schema,
    /// The name of the database, and of the connections of this run.
    name: String,
    /// Settings for the measured database.
    settings: ConnectionSettings,
    /// A connection to it, for measurements from outside of the workers.
    client: Client,
    /// Settings to reach the server without the measured database; none if that database is not ours.
    way_in: Option<ConnectionSettings>,
}

/// What has been consumed, in total or between two readings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    pub(super) wal_bytes: f64,
    pub(super) commits: f64,
    pub(super) dead_rows: f64,
}

impl Costs {
    pub(super) fn since(self, before: Costs) -> Costs {
        Costs {
            wal_bytes: self.wal_bytes - before.wal_bytes,
            commits: self.commits - before.commits,
            dead_rows: self.dead_rows - before.dead_rows,
        }
    }
}

impl Site {
    /// Creates the database, or takes the given one. `client` is connected with `settings`.
    pub(super) async fn open(
        args: &Bench,
        settings: ConnectionSettings,
        client: Client,
    ) -> Result<Site, Failure> {
        let schema = Schema::new(args.connection.schema.as_str())?;
        let name = format!("atta_bench_{:08x}", fastrand::u32(..));
        if args.in_place {
            let settings = settings.with_application_name(&name);
            let mut site = Site { schema, name, settings, client, way_in: None };
            site.take_over().await?;
            return Ok(site);
        }
        let way_in = settings.clone();
        let create = include_str!("../../../sql/create_database.sql").replace("{database}", &name);
        client.batch_execute(&create).await.map_err(|error| {
            Failure::new(format!("can't create the database {name}: {}", reason(&error)))
                .with_hint("the role needs CREATEDB; to measure in an existing database, use --in-place")
        })?;
        drop(client);
        let settings = settings.with_database(&name).with_application_name(&name);
        match connect_and_migrate(&settings, &schema).await {
            Ok(client) => Ok(Site { schema, name, settings, client, way_in: Some(way_in) }),
            Err(failure) => {
                drop_database(&way_in, &name).await?;
                Err(failure)
            }
        }
    }

    /// Takes a database that is not ours, if it has no other jobs.
    async fn take_over(&mut self) -> Result<(), Failure> {
        let plan = atta::plan_migration(&self.client, &self.schema).await?;
        let quoted = self.schema.quoted();
        match (plan.is_empty(), plan.from_revision()) {
            (true, _) => {}
            (false, None) => {
                atta::migrate(&mut self.client, &self.schema).await?;
            }
            (false, Some(_)) => {
                return Err(Failure::new(format!("schema {quoted} is not up to date"))
                    .with_hint("run: atta migrate; or omit --in-place"));
            }
        }
        let foreign: i64 = self.ask(include_str!("../../../sql/count_foreign_jobs.sql")).await?;
        if foreign > 0 {
            return Err(Failure::new(format!(
                "schema {quoted} has {foreign} {} that the benchmark did not add",
                if foreign == 1 { "job" } else { "jobs" }
            ))
            .with_hint("omit --in-place; the benchmark then creates a database"));
        }
        self.clear().await
    }

    /// Leaves the server as it was before.
    pub(super) async fn close(self) -> Result<(), Failure> {
        let Some(way_in) = &self.way_in else {
            self.clear().await?;
            self.run(include_str!("../../../sql/delete_bench_tasks.sql")).await?;
            return self.run(include_str!("../../../sql/delete_bench_queues.sql")).await;
        };
        drop(self.client);
        drop_database(way_in, &self.name).await
    }

    /// The connection string, for workers.
    pub(super) fn url(&self) -> String {
        self.settings.to_string_with_password()
    }

    pub(super) fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Adds jobs over separate connections, which close when it is dropped.
    pub(super) fn utils(&self) -> Result<WorkerUtils, Failure> {
        Ok(WorkerUtils::new(self.settings.pool(10)?, self.schema.clone()))
    }

    /// Another connection.
    pub(super) async fn connect(&self) -> Result<Client, Failure> {
        open(&self.settings).await
    }

    /// Deletes all jobs of the benchmark and vacuums.
    pub(super) async fn clear(&self) -> Result<(), Failure> {
        self.run(include_str!("../../../sql/delete_bench_jobs.sql")).await?;
        self.run(include_str!("../../../sql/vacuum_jobs.sql")).await
    }

    pub(super) async fn server_version(&self) -> Result<String, Failure> {
        self.ask(include_str!("../../../sql/read_server_version.sql")).await
    }

    /// By how many seconds the server's clock is ahead of ours. The quickest of several answers is the most exact.
    pub(super) async fn clock_ahead(&self) -> Result<f64, Failure> {
        let mut best = (Duration::MAX, 0.0);
        for _ in 0..10 {
            let (asked, before) = (Instant::now(), seconds_now());
            let theirs: f64 = self.ask(include_str!("../../../sql/read_clock.sql")).await?;
            let took = asked.elapsed();
            if took < best.0 {
                best = (took, theirs - (before + took.as_secs_f64() / 2.0));
            }
        }
        Ok(best.1)
    }

    /// What has been consumed so far. First waits until all other connections of this run have ended, except for those
    /// that stay: a server process reports its statistics at the latest when it ends.
    pub(super) async fn costs(&self, staying: i64) -> Result<Costs, Failure> {
        let others = include_str!("../../../sql/count_connections.sql");
        let began = Instant::now();
        while self.query(others, &[&self.name]).await?.get::<_, i64>(0) > staying {
            if began.elapsed() > LONGEST_END {
                return Err(Failure::new(
                    "closed connections do not disappear from the server, so the costs can't be measured",
                ));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if self.server_version().await?.split('.').next().and_then(|major| major.parse().ok()) < Some(15) {
            tokio::time::sleep(COLLECTOR).await;
        }
        let row = self.query(include_str!("../../../sql/read_costs.sql"), &[&self.schema.name()]).await?;
        Ok(Costs { wal_bytes: row.get(0), commits: row.get(1), dead_rows: row.get(2) })
    }

    async fn ask<T: for<'a> tokio_postgres::types::FromSql<'a>>(&self, template: &str) -> Result<T, Failure> {
        Ok(self.query(template, &[]).await?.get(0))
    }

    async fn query(
        &self,
        template: &str,
        arguments: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) -> Result<tokio_postgres::Row, Failure> {
        self.client.query_one(&self.fill(template), arguments).await.map_err(measuring)
    }

    async fn run(&self, template: &str) -> Result<(), Failure> {
        self.client.batch_execute(&self.fill(template)).await.map_err(measuring)
    }

    fn fill(&self, template: &str) -> String {
        template.replace("{schema}", &self.schema.quoted())
    }
}

pub(super) fn measuring(error: tokio_postgres::Error) -> Failure {
    Failure::new(format!("measuring: {}", reason(&error)))
}

pub(super) fn seconds_now() -> f64 {
    seconds(chrono::Utc::now())
}

#[expect(clippy::cast_precision_loss, reason = "microseconds since 1970 fit until the year 2255")]
pub(super) fn seconds(time: chrono::DateTime<chrono::Utc>) -> f64 {
    time.timestamp_micros() as f64 / 1e6
}

async fn connect_and_migrate(settings: &ConnectionSettings, schema: &Schema) -> Result<Client, Failure> {
    let mut client = open(settings).await?;
    atta::migrate(&mut client, schema).await?;
    Ok(client)
}

/// The name is generated by us and needs no quotes.
async fn drop_database(way_in: &ConnectionSettings, name: &str) -> Result<(), Failure> {
    let admin = open(way_in).await?;
    let end = include_str!("../../../sql/end_connections.sql");
    let statement = include_str!("../../../sql/drop_database.sql").replace("{database}", name);
    let dropped = match admin.query(end, &[&name]).await {
        Ok(_) => admin.batch_execute(&statement).await,
        Err(error) => Err(error),
    };
    dropped.map_err(|error| {
        Failure::new(format!("can't drop the database {name}: {}", reason(&error)))
            .with_hint(format!("run: drop database {name}"))
    })
}
