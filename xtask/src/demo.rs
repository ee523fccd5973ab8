//! `cargo xtask demo`: what it is like, in one command.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Instant;

use atta_cluster::{Binaries, Cluster};

use crate::{Result, cargo, install, say};

/// From an empty database to finished jobs. Ends by itself, or stays up for the curious.
pub(crate) fn run(stay: bool) -> Result {
    let binaries = install::postgres()?;
    crate::run(cargo().args(["build", "--quiet", "--package", "atta-cli"]))?;
    crate::run(cargo().args(["build", "--quiet", "--package", "atta", "--example", "quickstart"]))?;
    let start = Instant::now();
    let cluster = Cluster::temporary(&binaries).map_err(|error| error.to_string())?;
    let url = cluster.url("postgres");
    say(&format!("\nA private PostgreSQL is up: {url}\n"));

    step(
        "Install the schema.",
        cargo().args(["run", "--quiet", "--package", "atta-cli", "--", "migrate", "-c", &url]),
    )?;
    psql(
        &binaries,
        &url,
        "Add jobs by SQL, as a trigger or any program would.",
        "select id, run_at from graphile_worker.add_job('hello', '{\"name\": \"SQL\"}');
select id, key from graphile_worker.add_job('hello', '{\"name\": \"replaced\"}', job_key := 'greeting');
select id, key, revision from graphile_worker.add_job('hello', '{\"name\": \"one of a kind\"}', job_key := 'greeting');",
    )?;
    psql(
        &binaries,
        &url,
        "They are rows.",
        "select id, task_identifier, key, attempts from graphile_worker.jobs;",
    )?;
    step(
        "Run a worker until nothing is left; it adds a job of its own.",
        cargo()
            .args(["run", "--quiet", "--package", "atta", "--example", "quickstart"])
            .env("DATABASE_URL", &url),
    )?;
    psql(&binaries, &url, "All done.", "select count(*) as jobs_left from graphile_worker.jobs;")?;

    say(&format!("3 jobs added and run in {:.1} s, from an empty folder.", start.elapsed().as_secs_f64()));
    if stay {
        say(&format!("Still up at {url}. Press Enter to end it."));
        // The end of the input ends it as well.
        let _ = std::io::stdin().read(&mut [0]);
    }
    cluster.stop().map_err(|error| error.to_string())
}

fn step(title: &str, command: &mut Command) -> Result {
    say(&format!("--- {title}"));
    let status = command.stdin(Stdio::null()).status();
    say("");
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{title} {status}")),
        Err(error) => Err(format!("{title} {error}")),
    }
}

fn psql(binaries: &Binaries, url: &str, title: &str, sql: &str) -> Result {
    let lines: String = sql.lines().map(|line| format!("\npsql> {line}")).collect();
    step(&format!("{title}{lines}"), binaries.command("psql").args(["-q", url, "-c", sql]))
}
