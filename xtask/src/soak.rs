//! `cargo xtask soak`: runs a worker at half of its full speed for two hours, to see whether anything grows.
//!
//! Uses one private PostgreSQL server with default settings, a worker and a producer (`bench/soak`), each in a separate
//! process. First it measures the full speed, in a database that is dropped again; then it adds jobs at an even rate.
//! Every ten seconds a [`sample`] is appended to a file next to the chart, so that an interrupted soak can still be
//! drawn. [`verdict`] has the measures and the rule, [`plot`] the chart.

mod harness;
mod plot;
mod sample;
mod series;
mod verdict;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use crate::bench::server::Server;
use crate::bench::{build_package, numbers, output};
use crate::{Result, bench, install, positive, root, say};
use harness::Harness;
use sample::Sampler;
use series::{Log, Series};
use verdict::{Judgement, Verdict};

/// The folder in `bench/`.
const PACKAGE: &str = "soak";
const FULL_SPEED_DATABASE: &str = "full_speed";
const FULL_SPEED_SECONDS: &str = "25";
const DATABASE: &str = "soak";
const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// How long the worker may take for the remaining jobs after the last one is added; the last are due in ten seconds.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How long jobs are added
    #[arg(long, value_name = "N", default_value_t = 120.0, value_parser = positive)]
    minutes: f64,
    /// Jobs per second; default: half of the full speed, which is measured first
    #[arg(long, value_name = "N", value_parser = positive)]
    rate: Option<f64>,
    /// The chart; the samples are written next to it
    #[arg(long, value_name = "FILE.svg", default_value_os_t = root().join("docs/soak.svg"), hide_default_value = true)]
    out: PathBuf,
    /// Draw the samples of an earlier soak, and measure nothing
    #[arg(long, value_name = "FILE.csv")]
    plot: Option<PathBuf>,
}

/// Measures, unless it only has to draw; draws, prints the table and judges. The exit code is 1 if anything grows.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let samples = match &options.plot {
        Some(file) => file.clone(),
        None => measure(options)?,
    };
    let series = Series::read(&samples)?;
    let judgements = verdict::judge(&series)?;
    draw(&options.out, &series, &judgements)?;
    println!("{}", verdict::table(&judgements));
    say(&format!("samples: {}, picture: {}", samples.display(), options.out.display()));
    let is_flat = judgements.iter().all(|one| one.verdict == Verdict::Flat);
    Ok(if is_flat { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn draw(file: &Path, series: &Series, judgements: &[Judgement]) -> Result {
    let picture = plot::svg(series, judgements);
    std::fs::write(file, picture).map_err(|error| format!("writing {}: {error}", file.display()))
}

/// Measures, and returns the file with the samples.
fn measure(options: &Options) -> Result<PathBuf> {
    let binaries = install::postgres()?;
    build_package(PACKAGE)?;
    let file = options.out.with_extension("csv");
    let server = Server::start(binaries, &[])?;
    let soaked = soak(&server, options, &file);
    let stopped = server.stop();
    soaked?;
    stopped?;
    Ok(file)
}

fn soak(server: &Server, options: &Options, file: &Path) -> Result {
    let mut log = Log::create(file)?;
    log.note("started", &server.psql("postgres", &["-c", "select current_date"])?)?;
    log.note("server", &server.about()?)?;
    log.note("cores", &thread::available_parallelism().map_or(0, usize::from).to_string())?;
    let rate = match options.rate {
        Some(rate) => rate,
        None => {
            let full = full_speed(server)?;
            log.note("full_speed", &format!("{full:.0}"))?;
            say(&format!("full speed: {full:.0} jobs/s, added and run at the same time"));
            full / 2.0
        }
    };
    log.note("rate", &format!("{rate:.0}"))?;
    server.create_database(DATABASE)?;
    let url = server.url(DATABASE);
    let mut worker = Harness::start("worker", &["work"], &url)?;
    // The worker answers once it has created the tables.
    worker.ask("")?;
    let producer = Harness::start("producer", &["add", &format!("{rate:.1}")], &url)?;
    let mut sampler = Sampler::new(server, DATABASE, worker, producer)?;
    say(&format!("{} minutes at {rate:.0} jobs/s; samples go to {}", options.minutes, file.display()));
    take_samples(&mut sampler, &mut log, Duration::from_secs_f64(60.0 * options.minutes))?;
    wind_up(sampler, &mut log)
}

/// Adds as many jobs as the worker can run, for some seconds.
fn full_speed(server: &Server) -> Result<f64> {
    server.create_database(FULL_SPEED_DATABASE)?;
    let mut command = bench::binary(PACKAGE);
    command.args(["full", FULL_SPEED_SECONDS]).env("DATABASE_URL", server.url(FULL_SPEED_DATABASE));
    let printed = output(&mut command).map_err(|error| format!("finding the full speed: {error}"))?;
    server.psql("postgres", &["-c", &format!("drop database {FULL_SPEED_DATABASE}")])?;
    let rate = numbers(&printed)?.into_iter().find(|(key, _)| key == "per_second");
    rate.map(|(_, rate)| rate).ok_or_else(|| format!("unexpected output of the harness: {printed:?}"))
}

fn take_samples(sampler: &mut Sampler<'_>, log: &mut Log, length: Duration) -> Result {
    let began = Instant::now();
    let mut next = SAMPLE_EVERY;
    while next <= length {
        thread::sleep(next.saturating_sub(began.elapsed()));
        let sample = sampler.take()?;
        say(&sample.line());
        log.write(&sample)?;
        next += SAMPLE_EVERY;
    }
    Ok(())
}

/// Adds no more jobs; the remaining ones must run, and then none may be left.
fn wind_up(mut sampler: Sampler<'_>, log: &mut Log) -> Result {
    let (asked, rows) = sampler.stop_adding()?;
    let began = Instant::now();
    let completed = loop {
        let completed = sampler.completed()?;
        if completed >= rows || began.elapsed() > PATIENCE {
            break completed;
        }
        thread::sleep(Duration::from_millis(200));
    };
    let left = sampler.end()?;
    log.note("added", &format!("{asked:.0}"))?;
    log.note("merged", &format!("{:.0}", asked - rows))?;
    log.note("completed", &format!("{completed:.0}"))?;
    log.note("left", &left)?;
    say(&format!(
        "{asked:.0} jobs added, {:.0} of them merged by key; {completed:.0} completed",
        asked - rows
    ));
    if completed != rows || left != "0" {
        return Err(format!(
            "{rows:.0} jobs should have run, {completed:.0} did, and {left} are in the table"
        ));
    }
    Ok(())
}
