//! `cargo xtask pooler`, and a step of `cargo xtask test`: the library's tests behind PgBouncer, in both of its modes.
//!
//! testkit starts the pooler if `ATTA_TEST_POOLER` is set; connections with which a test observes bypass it. Tests that
//! can't pass behind a pooler by its nature, or that would be the same without one, are listed here with the reason,
//! and skipped.

use std::time::Instant;

use atta_cluster::Binaries;

use crate::{Result, install, say, test};

/// PgBouncer's modes, as `ATTA_TEST_POOLER` names them.
pub(crate) const TRANSACTION: &str = "transaction";
pub(crate) const SESSION: &str = "session";

/// Modules and tests that are skipped in both modes, and why.
const SKIPPED: &[(&str, &str)] = &[
    ("sql_api::", "connects to the server directly, as do the next two"),
    ("migrate::", "as above; worker::utils::run_does_everything_in_one_call migrates through the pooler"),
    ("plans::statements_that_run_for_every_job", "as above"),
    ("connect::", "logs in to servers of its own, and so do the next two"),
    ("faults::restarts::", "as above"),
    ("faults::failover::", "as above"),
    ("faults::pooler::", "has poolers of its own"),
    (
        "worker::options::a_failure_that_waiting_can_not_fix",
        "is about a login that is refused, and PgBouncer logs in by itself",
    ),
    ("roles::", "is about who logs in, and PgBouncer logs in as one user here"),
    ("faults::connections::connections_that_never_answer", "takes a minute, and needs no pooler"),
    ("cron::killed::", "takes long, on a clock that runs fast, and finds its process by its one connection"),
];

/// Tests that are also skipped in transaction mode: there is no LISTEN, and no session state lasts.
const SKIPPED_IN_TRANSACTION_MODE: &[(&str, &str)] = &[
    ("faults::connections::a_lost_listen_connection_is_restored", "is about LISTEN"),
    ("faults::waking::no_wake_up_is_lost", "is about LISTEN, and has no polls to help out"),
    ("faults::waking::notifications_of_other_schemas", "the same"),
    ("plans::dead_rows_are_seldom_read_again", "the same"),
    ("worker::utils::a_prepared_add_works_on", "is about prepared statements"),
    ("worker::order::an_urgent_job_does_not_wait_for_a_drain", "without LISTEN a poll finds the job"),
    ("worker::order::fast_urgent_jobs_go_before_slow_ones", "the same"),
];

pub(crate) fn run_alone() -> Result {
    install::pgbouncer()?;
    run(&install::postgres()?)
}

pub(crate) fn run(binaries: &Binaries) -> Result {
    behind(binaries, TRANSACTION)?;
    behind(binaries, SESSION)
}

/// The tests that are skipped in a mode, by a part of their names, and why.
pub(crate) fn skipped(mode: &str) -> Vec<(&'static str, &'static str)> {
    let of_the_mode = if mode == TRANSACTION { SKIPPED_IN_TRANSACTION_MODE } else { &[] };
    [SKIPPED, of_the_mode].concat()
}

fn behind(binaries: &Binaries, mode: &str) -> Result {
    let start = Instant::now();
    let skipped = skipped(mode);
    say(&format!("==> behind PgBouncer in {mode} mode, except for"));
    for (name, reason) in &skipped {
        say(&format!("    {name} ({reason})"));
    }
    let skips: Vec<String> = skipped.iter().map(|(name, _)| format!("--skip={name}")).collect();
    let mut which = vec!["--test=it", "--"];
    which.extend(skips.iter().map(String::as_str));
    test::tests(binaries, &which, &[("ATTA_TEST_POOLER", mode)])?;
    say(&format!("behind PgBouncer in {mode} mode: passed in {} s", start.elapsed().as_secs()));
    Ok(())
}
