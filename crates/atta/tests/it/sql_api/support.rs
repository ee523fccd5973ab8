//! What the tests of the SQL API share: jobs as values, notifications, errors, and waiting for locks.

use std::future::poll_fn;

use chrono::{DateTime, Utc};
use testkit::{Database, wait_for};
use tokio::sync::mpsc;
use tokio_postgres::error::DbError;
use tokio_postgres::{AsyncMessage, Client, NoTls, Row};

/// A row of `_private_jobs`, as the functions return it and as the table has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Job {
    pub(crate) id: i64,
    pub(crate) job_queue_id: Option<i32>,
    pub(crate) task_id: i32,
    /// The text of the JSON as it is stored.
    pub(crate) payload: String,
    pub(crate) priority: i16,
    pub(crate) run_at: DateTime<Utc>,
    pub(crate) attempts: i16,
    pub(crate) max_attempts: i16,
    pub(crate) last_error: Option<String>,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) updated_at: DateTime<Utc>,
    pub(crate) key: Option<String>,
    pub(crate) locked_at: Option<DateTime<Utc>>,
    pub(crate) locked_by: Option<String>,
    pub(crate) revision: i32,
    pub(crate) flags: Option<serde_json::Value>,
    pub(crate) is_available: bool,
}

impl Job {
    fn of(row: &Row) -> Job {
        Job {
            id: row.get("id"),
            job_queue_id: row.get("job_queue_id"),
            task_id: row.get("task_id"),
            payload: row.get("payload_text"),
            priority: row.get("priority"),
            run_at: row.get("run_at"),
            attempts: row.get("attempts"),
            max_attempts: row.get("max_attempts"),
            last_error: row.get("last_error"),
            created_at: row.get("created_at"),
            updated_at: row.get("updated_at"),
            key: row.get("key"),
            locked_at: row.get("locked_at"),
            locked_by: row.get("locked_by"),
            revision: row.get("revision"),
            flags: row.get("flags"),
            is_available: row.get("is_available"),
        }
    }
}

/// The jobs of `from`, in its order: a table, or a call of a function that returns jobs.
pub(crate) async fn jobs_of(client: &Client, from: &str) -> Vec<Job> {
    let sql = format!("select job.*, job.payload::text as payload_text from {from} as job");
    match client.query(&sql, &[]).await {
        Ok(rows) => rows.iter().map(Job::of).collect(),
        Err(error) => panic!("{sql}: {error:?}"),
    }
}

/// Calls `add_job` with these arguments, and checks that it returns what it stored.
pub(crate) async fn add(client: &Client, arguments: &str) -> Job {
    let mut returned = jobs_of(client, &format!("graphile_worker.add_job({arguments})")).await;
    let returned = returned.pop().expect("add_job returns a row");
    assert_eq!(job(client, returned.id).await.as_ref(), Some(&returned), "{arguments}");
    returned
}

/// Calls `add_jobs` with an array of rows, each the text of a `job_spec`'s eight attributes.
pub(crate) async fn add_all(client: &Client, specs: &[&str]) -> Vec<Job> {
    jobs_of(client, &format!("graphile_worker.add_jobs({})", spec_array(specs))).await
}

/// An array of `job_spec`, from the texts of their attributes.
pub(crate) fn spec_array(specs: &[&str]) -> String {
    let rows: Vec<String> = specs.iter().map(|spec| format!("row({spec})")).collect();
    format!("array[{}]::graphile_worker.job_spec[]", rows.join(", "))
}

/// The job with this id, if it exists.
pub(crate) async fn job(client: &Client, id: i64) -> Option<Job> {
    let from = format!("(select * from graphile_worker._private_jobs where id = {id})");
    jobs_of(client, &from).await.pop()
}

/// All jobs, in the order of their ids.
pub(crate) async fn all_jobs(client: &Client) -> Vec<Job> {
    jobs_of(client, "(select * from graphile_worker._private_jobs order by id)").await
}

/// The names of a job's task and queue, from the view.
pub(crate) async fn names(client: &Client, job: &Job) -> (String, Option<String>) {
    let sql = "select task_identifier, queue_name from graphile_worker.jobs where id = $1";
    let row = client.query_one(sql, &[&job.id]).await.expect("the view has the job");
    (row.get(0), row.get(1))
}

/// Runs statements that must succeed.
pub(crate) async fn run(client: &Client, sql: &str) {
    if let Err(error) = client.batch_execute(sql).await {
        panic!("{sql}: {error:?}");
    }
}

/// The single value that a query returns, as text.
pub(crate) async fn value(client: &Client, sql: &str) -> String {
    let sql = format!("select ({sql})::text");
    match client.query_one(&sql, &[]).await {
        Ok(row) => row.get::<_, Option<String>>(0).unwrap_or_default(),
        Err(error) => panic!("{sql}: {error:?}"),
    }
}

/// The error of a statement that must fail.
pub(crate) async fn refusal(client: &Client, sql: &str) -> DbError {
    match client.query(sql, &[]).await {
        Ok(_) => panic!("not refused: {sql}"),
        Err(error) => error.as_db_error().expect("the server refuses, not the connection").clone(),
    }
}

/// The error of a call of `add_job` that must fail.
pub(crate) async fn refused_add(client: &Client, arguments: &str) -> DbError {
    refusal(client, &format!("select graphile_worker.add_job({arguments})")).await
}

/// Locks a job as a worker's claim does, at a time in the past.
pub(crate) async fn lock(client: &Client, id: i64, ago: &str) {
    let sql = format!(
        "update graphile_worker._private_jobs \
         set locked_at = now() - interval '{ago}', locked_by = 'pool-1', attempts = attempts + 1 where id = {id}"
    );
    run(client, &sql).await;
}

/// The server process of this client.
pub(crate) async fn pid(client: &Client) -> i32 {
    client.query_one("select pg_backend_pid()", &[]).await.expect("a pid").get(0)
}

/// Waits until that process waits for a lock of another process.
pub(crate) async fn wait_until_blocked(observer: &Client, pid: i32) {
    wait_for("a session to wait for a lock", || async {
        let row = observer.query_one("select cardinality(pg_blocking_pids($1)) > 0", &[&pid]).await;
        row.expect("the server tells who blocks whom").get::<_, bool>(0).then_some(())
    })
    .await;
}

/// A session that listens on one channel.
pub(crate) struct Listener {
    client: Client,
    channel: &'static str,
    received: mpsc::UnboundedReceiver<String>,
}

impl Listener {
    pub(crate) async fn on(db: &Database, channel: &'static str) -> Listener {
        let (client, mut connection) =
            tokio_postgres::connect(&db.direct_url(), NoTls).await.expect("the test server answers");
        let (sender, received) = mpsc::unbounded_channel();
        // The connection task ends with its client.
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notification(notice) = message {
                    // At the end of the test, nobody receives any more.
                    let _ = sender.send(notice.payload().to_owned());
                }
            }
        });
        run(&client, &format!("listen \"{channel}\"")).await;
        Listener { client, channel, received }
    }

    /// All notifications since the last call. A notification of our own marks the end.
    pub(crate) async fn received(&mut self) -> Vec<String> {
        const END: &str = "the end";
        run(&self.client, &format!("notify \"{}\", '{END}'", self.channel)).await;
        let mut received = Vec::new();
        loop {
            let notice = tokio::time::timeout(testkit::DEADLINE, self.received.recv()).await;
            match notice.expect("our own notice arrives").expect("the listener's connection stands") {
                notice if notice == END => return received,
                notice => received.push(notice),
            }
        }
    }

    /// The counts in the notifications; none for an empty notification.
    pub(crate) async fn counts(&mut self) -> Vec<Option<i64>> {
        let received = self.received().await;
        received
            .iter()
            .map(|text| serde_json::from_str::<serde_json::Value>(text).ok()?["count"].as_i64())
            .collect()
    }
}
