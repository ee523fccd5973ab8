//! The rows of the matrix that need only the library: a part that is stuck delays only itself. `cargo xtask matrix`
//! runs them; the columns are in `testkit::matrix`.
#![allow(missing_docs)]

use std::process::ExitCode;
use std::time::Duration;

use atta::{ForbiddenFlags, HookFuture, Hooks, Job, WorkerContext, WorkerOptions};
use testkit::matrix::{self, Child, Column, NORMAL, Row, Rows, THREADS, THRESHOLD, World};

const BLOCKED_ROW: &str = "a blocked row under a release";
const BLOCKED_RECOVERY: &str = "a blocked row under recovery";
const REFUSED: &str = "a release refused permanently";
const HUNG_FLAGS: &str = "a hung flags function";
const HUNG_HOOK: &str = "a hung hook";
const HUNG_HANDLER: &str = "a hung Rust handler";
const BLOCKED_THREAD: &str = "a handler that blocks its thread (all but one)";
const BLOCKED_THREADS: &str = "a handler that blocks its thread (all threads)";
const FULL_POOL: &str = "a full pool";
const HELD_KEY: &str = "an application's transaction holds a job's key";
const SLOW_STATEMENT: &str = "a statement that takes 10 s";

/// More than the number of connections that a worker uses for releases.
const STUCK: usize = 3;

const NO_THREAD: &str = "no thread is left to run them";

/// The release of the jobs `stuck…` executes the ACTION.
const TRIGGER: &str = "
    create function public.on_release() returns trigger language plpgsql as $$
    begin
      if old.payload ->> 'name' like 'stuck%' and old.locked_by is not null
        and (tg_op = 'DELETE' or new.locked_by is null) then
        ACTION;
      end if;
      if tg_op = 'DELETE' then
        return old;
      end if;
      return new;
    end $$;
    create trigger on_release before update or delete on graphile_worker._private_jobs
      for each row execute function public.on_release();";

fn main() -> ExitCode {
    matrix::main::<OfTheLibrary>()
}

struct OfTheLibrary;

impl Rows for OfTheLibrary {
    const ROWS: &'static [Row] = &[
        Row::leaving_stuck(BLOCKED_ROW),
        Row {
            // The other job of the dead worker.
            must_start: &["doomed 2"],
            ..Row::new(BLOCKED_RECOVERY)
        },
        Row::leaving_stuck(REFUSED),
        Row::new(HUNG_FLAGS),
        Row::new(HUNG_HOOK),
        Row::new(HUNG_HANDLER),
        Row::new(BLOCKED_THREAD),
        Row {
            skipped: &[
                (Column::Queued, NO_THREAD),
                (Column::Unqueued, NO_THREAD),
                (Column::Releases, NO_THREAD),
            ],
            ..Row::new(BLOCKED_THREADS)
        },
        Row::new(FULL_POOL),
        Row::leaving_stuck(HELD_KEY),
        Row::leaving_stuck(SLOW_STATEMENT),
    ];

    async fn options(child: &Child, options: WorkerOptions) -> WorkerOptions {
        let (hanging, blocking, greedy, doomed) =
            (child.clone(), child.clone(), child.clone(), child.clone());
        let options = options
            .define_raw_job("hang", move |ctx| hang(hanging.clone(), ctx))
            .define_raw_job("block", move |ctx| block(blocking.clone(), ctx))
            .define_raw_job("greedy", move |ctx| keep_connection(greedy.clone(), ctx))
            .define_raw_job("doomed", move |ctx| hang(doomed.clone(), ctx));
        match child.row.as_str() {
            HUNG_FLAGS => options.forbidden_flags(flags(child.clone())),
            HUNG_HOOK => options.add_hooks(HungHook { child: child.clone() }),
            _ => options,
        }
    }

    async fn prepare(row: &Row, world: &mut World) {
        if row.name != BLOCKED_RECOVERY {
            return;
        }
        world.start_other().await;
        for number in [1, 2] {
            let name = format!("doomed {number}");
            world.add("doomed", &name, &format!("'{name}', '{{}}', false")).await;
            world.other_noted(&format!("started {name}")).await;
            world.is_locked(&name).await;
        }
        world.hold(&lock("doomed 1")).await;
        world.kill_other();
    }

    async fn set(row: &Row, world: &mut World) {
        match row.name {
            NORMAL => {}
            BLOCKED_ROW => {
                world.add_stuck(STUCK).await;
                world.hold(&lock("stuck%")).await;
                world.end_stuck(STUCK).await;
            }
            // Twice the threshold: the worker that recovers must have been alive for one threshold itself.
            BLOCKED_RECOVERY => world.settle_within(2 * THRESHOLD, "started doomed 2").await,
            REFUSED => {
                world.add_stuck(STUCK).await;
                trigger(world, "raise exception 'refused'").await;
                world.end_stuck(STUCK).await;
            }
            SLOW_STATEMENT => {
                world.add_stuck(1).await;
                trigger(world, "perform pg_sleep(10)").await;
                world.end_stuck(1).await;
            }
            HELD_KEY => {
                world.add_stuck(STUCK).await;
                for number in 1..=STUCK {
                    let sql = format!(
                        "select graphile_worker.add_job('probe', '{{\"name\": \"again\"}}', job_key => 'stuck {number}')"
                    );
                    world.hold(&sql).await;
                }
                world.end_stuck(STUCK).await;
            }
            HUNG_FLAGS => {
                world.order("hang flags");
                world.noted("flags hang").await;
            }
            HUNG_HOOK => {
                world.add_stuck(STUCK).await;
                world.end_stuck(STUCK).await;
                for number in 1..=STUCK {
                    world.noted(&format!("hook hangs stuck {number}")).await;
                }
            }
            HUNG_HANDLER => start(world, "hang", STUCK).await,
            BLOCKED_THREAD => start(world, "block", THREADS - 1).await,
            BLOCKED_THREADS => start(world, "block", THREADS).await,
            FULL_POOL => start(world, "greedy", 4).await,
            other => panic!("no fault is called {other:?}"),
        }
    }
}

/// Locks the rows of jobs by their names.
fn lock(names: &str) -> String {
    format!("select id from graphile_worker._private_jobs where payload ->> 'name' like '{names}' for update")
}

async fn trigger(world: &World, action: &str) {
    world.client.batch_execute(&TRIGGER.replace("ACTION", action)).await.expect("a trigger is made");
}

/// Starts this number of jobs of a task, none of which ends.
async fn start(world: &World, task: &str, count: usize) {
    for number in 1..=count {
        let name = format!("{task} {number}");
        world.add(task, &name, "").await;
        world.noted(&format!("started {name}")).await;
    }
}

fn name(job: &Job) -> String {
    let payload: serde_json::Value = job.payload().unwrap_or_default();
    payload["name"].as_str().unwrap_or_default().to_owned()
}

async fn hang(child: Child, ctx: WorkerContext) {
    child.note(&format!("started {}", name(ctx.job())));
    std::future::pending::<()>().await;
}

async fn block(child: Child, ctx: WorkerContext) {
    child.note(&format!("started {}", name(ctx.job())));
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

async fn keep_connection(child: Child, ctx: WorkerContext) {
    let _connection = ctx.pool().get().await.expect("a connection");
    child.note(&format!("started {}", name(ctx.job())));
    std::future::pending::<()>().await;
}

/// Returns flags until it has to hang.
fn flags(child: Child) -> ForbiddenFlags {
    ForbiddenFlags::async_function(move || {
        let child = child.clone();
        async move {
            if child.has_order("hang flags") {
                child.note("flags hang");
                std::future::pending::<()>().await;
            }
            Vec::new()
        }
    })
}

struct HungHook {
    child: Child,
}

impl Hooks for HungHook {
    fn on_complete<'a>(&'a self, job: &'a Job) -> HookFuture<'a> {
        Box::pin(async move {
            let name = name(job);
            if name.starts_with("stuck") {
                self.child.note(&format!("hook hangs {name}"));
                std::future::pending::<()>().await;
            }
        })
    }
}
