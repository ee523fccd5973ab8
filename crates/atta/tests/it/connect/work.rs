//! A worker that uses verified TLS for everything.

use std::time::Duration;

use atta::{JobSpec, WorkerEvent, WorkerOptions};

use super::support::tls_server;
use crate::worker::support::{Reports, Running, wait_until_empty};

#[tokio::test]
async fn a_worker_works_over_verified_tls() {
    let server = tls_server().with_users().await;
    let admin = server.admin().await;
    admin.batch_execute("create database work").await.unwrap();
    let root = server.file("root.crt");
    let text = server.text("tls_only", &format!("sslmode=verify-full sslrootcert='{root}' dbname=work"));
    let mut reports = Reports::new();
    // Only LISTEN can announce the job in time.
    let options = WorkerOptions::default()
        .database_url(&text)
        .poll_interval(Duration::from_secs(3600))
        .define_raw_job("noop", reports.task(|_| async {}));
    let mut events = options.subscribe();
    let running = Running::start(options).await;
    while !matches!(events.next().await.unwrap(), WorkerEvent::ListenStarted) {}
    for _ in 0..20 {
        running.utils.add_raw_job("noop", 1, JobSpec::default()).await.unwrap();
        reports.next().await;
    }
    wait_until_empty(&running.utils).await;
    let ask = "select count(*) filter (where ssl), count(*) filter (where not ssl)
        from pg_stat_activity join pg_stat_ssl using (pid) where datname = 'work'";
    let row = admin.query_one(ask, &[]).await.unwrap();
    assert!(row.get::<_, i64>(0) >= 3 && row.get::<_, i64>(1) == 0, "{row:?}");
    running.stop().await.unwrap();

    let job = atta::quick_add_job(&text, "noop", 2, JobSpec::default()).await.unwrap();
    assert_eq!(job.task_identifier(), "noop");
    atta::run_migrations(&text).await.unwrap();
}
