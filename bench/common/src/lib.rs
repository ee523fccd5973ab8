//! What the harnesses share: their modes, the clock, and the line that they print.
//!
//! A harness is called as `PROGRAM SETTING MODE COUNT`, with the database in `DATABASE_URL`, and prints one line of
//! JSON. It never measures its own start, only the time from the moment at which a worker could work.

use std::env;
use std::error::Error;
use std::future::Future;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

pub type Result<T = (), E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// How far ahead the jobs of `late` are scheduled.
pub const AHEAD: Duration = Duration::from_secs(1);

/// The largest number of single adds at a time.
const PRODUCERS: usize = 16;

/// The unit of times in /proc, which is the same on all usual Linux systems.
const TICKS_PER_SECOND: f64 = 100.0;

/// How long a harness waits for its jobs before it gives up.
const PATIENCE: Duration = Duration::from_secs(240);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Installs the schema and ends.
    Prepare,
    /// Works until the existing jobs of the task `noop` are gone.
    Drain,
    /// Works until this many jobs of the task `noop` have run, whatever is left.
    Part,
    /// Adds jobs of the task `noop` in one call.
    Add,
    /// Adds jobs of the task `ping` one after the other, each when the one before has started.
    Latency,
    /// Adds jobs of the task `ping` that are due in a second.
    Late,
    /// Adds jobs of the task `noop` one by one at a steady rate for that number of seconds, and measures the server's CPU.
    Cost,
    /// Runs jobs that others add, until the standard input is closed.
    Wait,
}

/// The arguments of the command line.
#[derive(Clone, Debug)]
pub struct Order {
    pub url: String,
    pub setting: String,
    pub mode: Mode,
    pub count: usize,
}

impl Order {
    pub fn read() -> Result<Order> {
        let words: Vec<String> = env::args().skip(1).collect();
        let [setting, mode, count] = words.as_slice() else {
            return Err("usage: SETTING prepare|drain|part|add|latency|late|cost|wait COUNT".into());
        };
        let mode = match mode.as_str() {
            "prepare" => Mode::Prepare,
            "drain" => Mode::Drain,
            "part" => Mode::Part,
            "add" => Mode::Add,
            "latency" => Mode::Latency,
            "late" => Mode::Late,
            "cost" => Mode::Cost,
            "wait" => Mode::Wait,
            other => return Err(format!("unknown mode {other:?}").into()),
        };
        let url = env::var("DATABASE_URL").map_err(|_| "DATABASE_URL is not set")?;
        Ok(Order { url, setting: setting.clone(), mode, count: count.parse()? })
    }
}

/// How many jobs of the task `noop` have run.
static DONE: AtomicUsize = AtomicUsize::new(0);

/// The delays of the jobs of the task `ping`, for the code that waits for them.
static DELAYS: OnceLock<UnboundedSender<f64>> = OnceLock::new();

/// The body of the task `noop`.
pub fn noop() {
    DONE.fetch_add(1, Ordering::Relaxed);
}

/// The body of the task `ping`: reports how late it starts, compared with the time in its payload.
pub fn ping(due_micros: i64) {
    let delay = (micros(SystemTime::now()) - due_micros) as f64 / 1000.0;
    if let Some(delays) = DELAYS.get() {
        // When the harness ends early, nobody waits any more.
        let _ = delays.send(delay);
    }
}

/// Waits until `count` jobs have run and their rows are gone, and prints how long that took.
///
/// The table is queried only after the last job has run: the query reads all dead rows in it.
pub async fn drained(count: usize, start: Instant, is_empty: impl AsyncFn() -> Result<bool>) -> Result {
    while DONE.load(Ordering::Relaxed) < count {
        give_up(start)?;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    while !is_empty().await? {
        give_up(start)?;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    print_seconds(start.elapsed());
    Ok(())
}

/// Runs one call that adds all jobs, and prints how long it took.
pub async fn added<T, E: Into<Box<dyn Error + Send + Sync>>>(
    call: impl Future<Output = Result<T, E>>,
) -> Result {
    let start = Instant::now();
    call.await.map_err(Into::into)?;
    print_seconds(start.elapsed());
    Ok(())
}

/// One job after the other, each when the one before has started. `add` gets the time to write into the payload.
///
/// The first jobs warm up connections and statements, and do not count.
pub async fn latency(count: usize, add: impl AsyncFn(i64) -> Result) -> Result {
    let mut delays = listen();
    let warm_up = (count / 20).clamp(1, 20);
    let mut seen = Vec::with_capacity(count);
    for n in 0..warm_up + count {
        add(micros(SystemTime::now())).await?;
        let delay = next(&mut delays).await?;
        if n >= warm_up {
            seen.push(delay);
        }
    }
    print_percentiles(seen);
    Ok(())
}

/// Jobs that are due in a second. `add` gets their time.
///
/// All are added before the first is due, unless the machine is very slow: an add wakes a worker, and a worker that is
/// woken all the time is never late.
pub async fn late(count: usize, add: impl AsyncFn(i64) -> Result) -> Result {
    let mut delays = listen();
    let mut seen = Vec::with_capacity(count);
    for _ in 0..count {
        add(micros(SystemTime::now() + AHEAD)).await?;
    }
    for _ in 0..count {
        seen.push(next(&mut delays).await?);
    }
    print_percentiles(seen);
    Ok(())
}

/// Calls `add` at the rate of `BENCH_RATE` per second, and prints what each job of the task `noop` that ran meanwhile
/// cost the PostgreSQL server whose postmaster has the process id `BENCH_POSTGRES_PID`.
///
/// The first second warms up connections and statements, and does not count. An add that takes long does not delay the
/// next ones, as long as not too many are running.
pub async fn cost<F>(seconds: usize, add: impl Fn() -> F) -> Result
where
    F: Future<Output = Result> + Send + 'static,
{
    let number = |name: &str| -> Result<usize> {
        Ok(env::var(name).map_err(|_| format!("{name} is not set"))?.parse()?)
    };
    let (rate, postgres) = (number("BENCH_RATE")?, number("BENCH_POSTGRES_PID")?);
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate as u32);
    let mut adding = tokio::task::JoinSet::new();
    let mut delays: Vec<f64> = Vec::new();
    let (mut start, mut cpu, mut done) = (Instant::now(), 0.0, 0);
    for tick in 0..rate * (seconds + 1) {
        if tick == rate {
            (start, cpu, done) = (Instant::now(), cpu_seconds(postgres)?, DONE.load(Ordering::Relaxed));
        }
        if tick > rate && start.elapsed() > Duration::from_secs(seconds as u64) {
            break;
        }
        ticks.tick().await;
        while adding.len() >= PRODUCERS {
            delays.extend(adding.join_next().await.transpose()?.transpose()?);
        }
        let adding_one = add();
        adding.spawn(async move {
            let start = Instant::now();
            adding_one.await.map(|()| start.elapsed().as_secs_f64() * 1000.0)
        });
        while let Some(added) = adding.try_join_next() {
            delays.push(added??);
        }
    }
    let (elapsed, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds(postgres)? - cpu);
    // At least one, so that the cost of a server that runs nothing is a number too.
    let ran = DONE.load(Ordering::Relaxed).saturating_sub(done).max(1) as f64;
    delays.sort_by(f64::total_cmp);
    let median = delays.get(delays.len() / 2).copied().unwrap_or(0.0);
    println!("{{\"cpu_ms\":{:.4},\"rate\":{:.1},\"add_ms\":{median:.3}}}", cpu * 1000.0 / ran, ran / elapsed);
    while adding.join_next().await.is_some() {}
    Ok(())
}

/// Prints a line when the workers run, waits until the standard input is closed, and prints how many jobs of the task
/// `noop` have run.
pub async fn wait() -> Result {
    println!("ready");
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
    println!("{{\"ran\":{}}}", DONE.load(Ordering::Relaxed));
    Ok(())
}

/// The CPU time of a server, in seconds, with all its processes, including those that have ended.
fn cpu_seconds(postgres: usize) -> Result<f64> {
    let mut ticks = 0;
    for entry in std::fs::read_dir("/proc")? {
        let Ok(pid) = entry?.file_name().to_string_lossy().parse::<usize>() else { continue };
        // The process may have ended since; then its time is included in that of its parent.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        // The name, in parentheses, may contain spaces. After it: state, parent, and so on.
        let Some((_, fields)) = stat.rsplit_once(") ") else { continue };
        let fields: Vec<&str> = fields.split(' ').collect();
        let number =
            |index: usize| fields.get(index).and_then(|field| field.parse::<usize>().ok()).unwrap_or(0);
        if pid == postgres {
            // Its own time, and that of the children that it has waited for.
            ticks += number(11) + number(12) + number(13) + number(14);
        } else if number(1) == postgres {
            ticks += number(11) + number(12);
        }
    }
    if ticks == 0 {
        return Err("the CPU time of the server is not available on this system".into());
    }
    Ok(ticks as f64 / TICKS_PER_SECOND)
}

fn listen() -> UnboundedReceiver<f64> {
    let (sender, receiver) = mpsc::unbounded_channel();
    // Only one mode runs in a process, so the cell is empty.
    let _ = DELAYS.set(sender);
    receiver
}

async fn next(delays: &mut UnboundedReceiver<f64>) -> Result<f64> {
    let delay = tokio::time::timeout(Duration::from_secs(20), delays.recv()).await;
    delay.map_err(|_| "a job did not start within 20 s")?.ok_or_else(|| "no more jobs".into())
}

fn give_up(start: Instant) -> Result {
    if start.elapsed() > PATIENCE {
        return Err(format!("no progress after {} jobs", DONE.load(Ordering::Relaxed)).into());
    }
    Ok(())
}

fn micros(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

fn print_seconds(elapsed: Duration) {
    println!("{{\"seconds\":{:.6},\"peak_mb\":{:.1}}}", elapsed.as_secs_f64(), peak_mb());
}

/// The peak memory of this process, as Linux counts it; 0 on other systems.
fn peak_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().map_or(0.0, |kilobytes: f64| kilobytes / 1024.0)
}

fn print_percentiles(mut delays: Vec<f64>) {
    delays.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let rank = (share * delays.len() as f64).ceil() as usize;
        delays.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    };
    println!(
        "{{\"p50\":{:.3},\"p95\":{:.3},\"p99\":{:.3},\"max\":{:.3}}}",
        at(0.5),
        at(0.95),
        at(0.99),
        at(1.0)
    );
}
