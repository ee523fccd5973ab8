//! The columns: what must go on while something is broken, and how long it takes.

use std::time::{Duration, Instant};

use super::{GRACE, Row, Rows, World};

/// How much longer than normal a cell may take.
const ALLOWANCE: Duration = Duration::from_secs(2);

/// How long the heartbeat is observed.
const WATCH: Duration = Duration::from_secs(6);

/// How long to wait for a worker that does not end.
const LONGEST_SHUTDOWN: Duration = Duration::from_secs(60);

/// The guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Heartbeats go on. Measures the largest age that the last heartbeat reached.
    Heartbeat,
    /// Jobs of other queues start.
    Queued,
    /// Unqueued jobs start.
    Unqueued,
    /// The outcomes of other jobs are written.
    Releases,
    /// A cron tick that becomes due adds its job.
    Cron,
    /// An orderly shutdown ends in time, and leaves only locks that nobody can release.
    Shutdown,
}

/// In the order of the table.
pub(super) const COLUMNS: [Column; 6] =
    [Column::Heartbeat, Column::Queued, Column::Unqueued, Column::Releases, Column::Cron, Column::Shutdown];

/// The result of a cell.
#[derive(Clone, Debug)]
pub(super) enum Cell {
    Ok(Duration),
    /// What is wrong.
    Red(String),
    /// The guarantee is not expected to hold, and why.
    Skipped(&'static str),
}

impl Cell {
    pub(super) fn is_red(&self) -> bool {
        matches!(self, Cell::Red(_))
    }
}

/// How long each column takes when nothing is broken.
#[derive(Clone, Debug, Default)]
pub(super) struct Normal {
    times: [Duration; COLUMNS.len()],
}

impl Normal {
    pub(super) fn learn(&mut self, cells: &[Cell]) {
        for (time, cell) in self.times.iter_mut().zip(cells) {
            if let Cell::Ok(measured) = cell {
                *time = *measured;
            }
        }
    }

    fn limit(&self, column: Column) -> Duration {
        let index = COLUMNS.iter().position(|one| *one == column).unwrap_or_default();
        // Before the normal time is known, it may be as long as this.
        let normal = if self.times[index].is_zero() { 3 * ALLOWANCE } else { self.times[index] };
        // The schedule checks its clock only once per second, so the normal time is anything up to that.
        let normal = if column == Column::Cron { normal.max(Duration::from_secs(1)) } else { normal };
        let grace = if column == Column::Shutdown { GRACE } else { Duration::ZERO };
        normal + ALLOWANCE + grace
    }
}

/// Measures all columns except the shutdown, at the same time.
pub(super) async fn while_it_runs<R: Rows>(row: &Row, normal: &Normal) -> Vec<Cell> {
    let mut world = World::broken::<R>(row).await;
    let worker_id = world.worker_id().await;
    let limit = |column| normal.limit(column);
    let (heartbeat, queued, unqueued, releases, cron) = tokio::join!(
        heartbeat(&world, &worker_id, limit(Column::Heartbeat)),
        queued(&world, row, limit(Column::Queued)),
        unqueued::<R>(&world, row, limit(Column::Unqueued)),
        releases(&world, limit(Column::Releases)),
        cron(&world, limit(Column::Cron)),
    );
    let cells = [heartbeat, queued, unqueued, releases, cron];
    let cells: Vec<Cell> =
        COLUMNS.iter().zip(cells).map(|(column, cell)| skip(row, *column).unwrap_or(cell)).collect();
    world.keep_if(cells.iter().any(Cell::is_red));
    cells
}

/// A second run of the same fault: SIGTERM while it is present. A worker that is too late is still waited for, so that
/// the table shows how late it is.
pub(super) async fn shutdown<R: Rows>(row: &Row, normal: &Normal) -> Cell {
    let mut world = World::broken::<R>(row).await;
    let worker_id = world.worker_id().await;
    let limit = normal.limit(Column::Shutdown);
    let start = Instant::now();
    world.terminate();
    world.order("end earlier");
    while !world.has_ended() && start.elapsed() < LONGEST_SHUTDOWN {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let took = start.elapsed();
    let verb = if world.has_ended() { "ended after" } else { "has not ended after" };
    let late = (took > limit).then(|| format!("{verb} {:.1} s", took.as_secs_f64()));
    let wrong: Vec<String> = late.into_iter().chain(left(&world, row, &worker_id).await).collect();
    let cell = if wrong.is_empty() { Cell::Ok(took) } else { Cell::Red(wrong.join("; ")) };
    let cell = skip(row, Column::Shutdown).unwrap_or(cell);
    world.keep_if(cell.is_red());
    cell
}

fn skip(row: &Row, column: Column) -> Option<Cell> {
    row.skipped.iter().find(|(one, _)| *one == column).map(|(_, reason)| Cell::Skipped(reason))
}

/// The longest age that the heartbeat reaches.
async fn heartbeat(world: &World, worker_id: &str, limit: Duration) -> Cell {
    let sql = "select extract(epoch from clock_timestamp() - heartbeat_at)::float8
               from graphile_worker._atta_workers where id = $1";
    let start = Instant::now();
    let mut oldest = 0.0_f64;
    while start.elapsed() < WATCH.max(limit + limit) {
        let row = world.client.query_opt(sql, &[&worker_id]).await.expect("the workers can be read");
        let Some(row) = row else { return Cell::Red("not registered".into()) };
        oldest = oldest.max(row.get(0));
        if oldest > limit.as_secs_f64() {
            return Cell::Red(format!("age over {oldest:.1} s"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Cell::Ok(Duration::from_secs_f64(oldest))
}

async fn queued(world: &World, row: &Row, limit: Duration) -> Cell {
    let start = Instant::now();
    world.add("probe", "other queue", "'other', '{}', false").await;
    let usual = wait(limit, start, || async { world.has_noted("started other queue") }).await;
    for name in row.must_start {
        let line = format!("started {name}");
        if wait(limit, start, || async { world.has_noted(&line) }).await.is_none() {
            return Cell::Red(format!("{name} not within {:.1} s", limit.as_secs_f64()));
        }
    }
    cell(usual, limit)
}

async fn unqueued<R: Rows>(world: &World, row: &Row, limit: Duration) -> Cell {
    let start = Instant::now();
    world.add("probe", "plain", "").await;
    for (task, name) in R::others(row) {
        world.add(task, name, "").await;
    }
    let usual = wait(limit, start, || async { world.has_noted("started plain") }).await;
    for (_, name) in R::others(row) {
        let line = format!("started {name}");
        if wait(limit, start, || async { world.has_noted(&line) }).await.is_none() {
            return Cell::Red(format!("{name} not within {:.1} s", limit.as_secs_f64()));
        }
    }
    cell(usual, limit)
}

/// Two jobs started before the fault, one of them in a queue, and end now. Their rows must disappear.
async fn releases(world: &World, limit: Duration) -> Cell {
    let start = Instant::now();
    world.order("end earlier");
    let sql = "select count(*) from graphile_worker._private_jobs where payload ->> 'name' like 'earlier%'";
    cell(wait(limit, start, || async { world.count(sql).await == 0 }).await, limit)
}

/// Sets the worker's clock to the next minute.
async fn cron(world: &World, limit: Duration) -> Cell {
    let sql = "select count(*) from graphile_worker.jobs where task_identifier = 'tick'";
    let before = world.count(sql).await;
    let start = Instant::now();
    world.order("tick");
    cell(wait(limit, start, || async { world.count(sql).await > before }).await, limit)
}

/// Locks that should not be there, and whether other workers could find the rest.
async fn left(world: &World, row: &Row, worker_id: &str) -> Option<String> {
    let sql = "select payload ->> 'name' from graphile_worker._private_jobs where locked_by = $1
               union all
               select queue_name from graphile_worker._private_job_queues where locked_by = $1";
    let rows = world.client.query(sql, &[&worker_id]).await.expect("locks can be read");
    let locked: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let is_stuck = |name: &&String| row.leaves_stuck && name.starts_with("stuck");
    let wrong: Vec<&str> = locked.iter().filter(|name| !is_stuck(name)).map(String::as_str).collect();
    if !wrong.is_empty() {
        return Some(format!("leaves locked: {}", wrong.join(", ")));
    }
    let sql = "select count(*) from graphile_worker._atta_workers where id = $1";
    let registered = world.client.query_one(sql, &[&worker_id]).await.expect("the workers can be read");
    let is_lost = !locked.is_empty() && registered.get::<_, i64>(0) == 0;
    is_lost.then(|| "leaves locks, and is not registered".to_owned())
}

fn cell(time: Option<Duration>, limit: Duration) -> Cell {
    time.map_or_else(|| Cell::Red(format!("not within {:.1} s", limit.as_secs_f64())), Cell::Ok)
}

/// Waits for a condition, and returns how long that took.
async fn wait<F: Future<Output = bool>>(
    limit: Duration,
    start: Instant,
    is_so: impl Fn() -> F,
) -> Option<Duration> {
    while !is_so().await {
        if start.elapsed() > limit {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Some(start.elapsed())
}
