//! The actors: what one session does in a case. An actor is a list of transactions, and a transaction a list of our
//! statements with their arguments.
//!
//! In arguments, `{t}`, `{t-2h}` and so on are the times of the claims in `world.sql`. `{ids}`, `{times}`, `{queues}` and
//! `{places}` are those of the jobs that the actor's last claim, pick or search returned, `{id}` and `{queue}` those of the
//! first of them; `{nulls}`, `{errors}`, `{falses}` have an entry for each of them.

use crate::world::World;

/// What an actor may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// For rows that others have locked, or keys that others are adding.
    ForRows,
    /// Never for a row; for a table that a clean-up has locked.
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isolation {
    ReadCommitted,
    RepeatableRead,
    Serializable,
}

/// A statement and its arguments.
pub(crate) type Call = (&'static str, &'static str);

#[derive(Clone, Debug)]
pub(crate) struct Actor {
    pub(crate) name: String,
    pub(crate) waits: Waits,
    pub(crate) isolation: Isolation,
    pub(crate) transactions: Vec<Vec<Call>>,
    pub(crate) worlds: &'static [World],
}

const MIXED: &[World] = &[World::Mixed];
const PLAIN: &[World] = &[World::Plain];
const BOTH: &[World] = &[World::Mixed, World::Plain];

impl Actor {
    /// Whether the actor is an add, which also runs at the stricter levels of isolation.
    pub(crate) fn is_add(&self) -> bool {
        self.name.starts_with("add_")
    }

    /// Clean-ups lock whole tables, and everybody waits for them.
    pub(crate) fn locks_tables(&self) -> bool {
        self.name.starts_with("clean_")
    }

    /// Statements that change only the table of workers.
    pub(crate) fn is_of_workers(&self) -> bool {
        matches!(
            self.name.as_str(),
            "register_dead" | "heartbeat" | "deregister" | "declare_dead" | "forget_workers"
        )
    }

    /// Statements that read or change the table of workers, or what dead workers had.
    pub(crate) fn reads_workers(&self) -> bool {
        self.is_of_workers()
            || self.name.starts_with("recover_")
            || matches!(
                self.name.as_str(),
                "sweep" | "claim_w0" | "complete_dead" | "return_dead" | "fail_dead"
            )
    }

    /// Statements that do something else in a world without queues and flags.
    pub(crate) fn is_for_plain(&self) -> bool {
        self.worlds == PLAIN
            || matches!(
                self.name.as_str(),
                "claim_one" | "claim_all" | "claim_then_complete" | "pick_complete"
            )
    }

    fn at(&self, isolation: Isolation, suffix: &str) -> Actor {
        Actor { name: format!("{}{suffix}", self.name), isolation, ..self.clone() }
    }
}

fn actor(name: &str, waits: Waits, worlds: &'static [World], transactions: &[&[Call]]) -> Actor {
    let transactions = transactions.iter().map(|calls| calls.to_vec()).collect();
    Actor { name: name.into(), waits, isolation: Isolation::ReadCommitted, transactions, worlds }
}

/// Adds and the functions that manage jobs: they wait for rows.
const WAITING: [(&str, &[World], Call); 29] = [
    ("add_plain", BOTH, ("add_job", r#"'{"identifier":"a"}'"#)),
    ("add_queued", MIXED, ("add_job", r#"'{"identifier":"a","queue_name":"q"}'"#)),
    ("add_unused", BOTH, ("add_job", r#"'{"identifier":"unused","queue_name":"unused"}'"#)),
    ("add_fresh", MIXED, ("add_job", r#"'{"identifier":"fresh","queue_name":"fresh"}'"#)),
    (
        "add_replace_free",
        BOTH,
        ("add_job", r#"'{"identifier":"a","queue_name":"unused","job_key":"k","payload":"1"}'"#),
    ),
    ("add_replace_running", BOTH, ("add_job", r#"'{"identifier":"a","job_key":"r","payload":"1"}'"#)),
    ("add_replace_failed", BOTH, ("add_job", r#"'{"identifier":"a","job_key":"p","payload":"1"}'"#)),
    ("add_replace_queued", MIXED, ("add_job", r#"'{"identifier":"unused","job_key":"h","payload":"1"}'"#)),
    (
        "add_replace_stale",
        MIXED,
        ("add_job", r#"'{"identifier":"a","queue_name":"q5","job_key":"s","payload":"1"}'"#),
    ),
    ("add_replace_new", BOTH, ("add_job", r#"'{"identifier":"a","job_key":"new","payload":"1"}'"#)),
    (
        "add_preserve_free",
        BOTH,
        ("add_job", r#"'{"identifier":"a","job_key":"k","payload":"1","job_key_mode":"preserve_run_at"}'"#),
    ),
    (
        "add_preserve_new",
        BOTH,
        ("add_job", r#"'{"identifier":"a","job_key":"new","payload":"1","job_key_mode":"preserve_run_at"}'"#),
    ),
    (
        "add_dedupe_free",
        BOTH,
        (
            "add_job_deduped",
            r#"'{"identifier":"a","job_key":"k","payload":"1","job_key_mode":"unsafe_dedupe"}'"#,
        ),
    ),
    (
        "add_dedupe_running",
        BOTH,
        (
            "add_job_deduped",
            r#"'{"identifier":"a","job_key":"r","payload":"1","job_key_mode":"unsafe_dedupe"}'"#,
        ),
    ),
    (
        "add_dedupe_new",
        BOTH,
        (
            "add_job_deduped",
            r#"'{"identifier":"a","job_key":"new","payload":"1","job_key_mode":"unsafe_dedupe"}'"#,
        ),
    ),
    (
        "add_batch_plain",
        BOTH,
        (
            "add_jobs",
            r#"'{"jobs":[{"identifier":"a"},{"identifier":"fresh","queue_name":"unused"}],"preserve_run_at":false}'"#,
        ),
    ),
    (
        "add_batch_keys",
        BOTH,
        (
            "add_jobs",
            r#"'{"jobs":[{"identifier":"a","job_key":"k"},{"identifier":"a","job_key":"new"},{"identifier":"a","job_key":"r"}],"preserve_run_at":false}'"#,
        ),
    ),
    (
        "add_batch_back",
        BOTH,
        (
            "add_jobs",
            r#"'{"jobs":[{"identifier":"a","job_key":"r"},{"identifier":"unused"},{"identifier":"a","job_key":"new"},{"identifier":"a","job_key":"k"}],"preserve_run_at":true}'"#,
        ),
    ),
    (
        "add_cron",
        BOTH,
        (
            "schedule_cron_jobs",
            r#"'[{"identifier":"c","task_identifier":"a"},{"identifier":"d","task_identifier":"a","job_key":"k"}]', '{t}', '{1,1}'"#,
        ),
    ),
    ("remove_free", BOTH, ("remove_job", r#"'{"job_key":"k"}'"#)),
    ("remove_running", BOTH, ("remove_job", r#"'{"job_key":"r"}'"#)),
    ("remove_failed", BOTH, ("remove_job", r#"'{"job_key":"p"}'"#)),
    ("remove_stale", MIXED, ("remove_job", r#"'{"job_key":"s"}'"#)),
    ("complete_jobs", BOTH, ("complete_jobs", r#"'{"job_ids":[13,9,7,6,5,4,3,1]}'"#)),
    (
        "permanently_fail_jobs",
        BOTH,
        ("permanently_fail_jobs", r#"'{"job_ids":[1,3,4,5,6,7,9,12,13],"reason":"no"}'"#),
    ),
    ("reschedule_jobs", BOTH, ("reschedule_jobs", r#"'{"job_ids":[1,3,4,5,6,7,8,9,13],"priority":1}'"#)),
    ("retry_jobs", BOTH, ("retry_jobs", r#"'{"job_ids":[7,5,4,3,2,1,8,13]}'"#)),
    ("unlock_jobs", BOTH, ("unlock_jobs", r#"'{"job_ids":[5,6,8,10,13,14]}'"#)),
    ("force_unlock_workers", BOTH, ("force_unlock_workers", r#"'{"worker_ids":["w0","node"]}'"#)),
];

const CLAIM_ONE: Call = (
    "claim_by_queue",
    "'w2', '{a,unused}', '{}', null, 1, '{a,unused}', 32767, null, 9223372036854775807, 1000, true, '{}'",
);
const CLAIM_ALL: Call = (
    "claim_by_job",
    "'w2', '{a,unused}', '{}', null, 20, '{a,unused}', 32767, null, 9223372036854775807, 1000, true, '{}'",
);
const CLAIM_QUEUED: Call = (
    "claim_by_queue",
    "'w2', '{a,unused}', '{f}', null, 3, '{}', 32767, null, 9223372036854775807, 1000, true, '{}'",
);
const CLAIM_W1: Call = (
    "claim_by_job",
    "'w1', '{a,unused}', '{}', null, 20, '{a,unused}', 32767, null, 9223372036854775807, 1000, true, '{}'",
);
const CLAIM_W0: Call = (
    "claim_by_job",
    "'w0', '{a,unused}', '{}', null, 20, '{a,unused}', 32767, null, 9223372036854775807, 1000, true, '{}'",
);
const CLAIM_LEVEL: Call =
    ("claim_level", "'w2', 'a', 0, null, 20, '{a,unused}', null, null, null, null, true");
const FIND_CLAIMABLE: Call = (
    "find_claimable",
    "'w2', '{a,unused}', '{}', null, 20, '{a,unused}', 32767, null, 9223372036854775807, 1000, true, '{}'",
);
const PICK: Call =
    ("pick_jobs", "'{a}', '{0}', '{null}', '{0}', '{20}', null, 20, 32767, null, 9223372036854775807");
const PICK_LEVEL: Call = ("pick_level", "'a', 0, null, 0, null, 20, null, 9223372036854775807");
const PICK_FLAGGED: Call = (
    "pick_flagged_jobs",
    "'{a}', '{0}', '{null}', '{0}', '{20}', null, 20, 32767, null, 9223372036854775807, '{}'",
);
const FAIL_PICKED: Call = ("fail_held", "'{ids}', '{errors}', '{nulls}', '{nulls}', '{nulls}', '{falses}'");
/// By a worker whose own last heartbeat is recent: it declares `ws` dead.
pub(crate) const DECLARE_DEAD: Call = ("declare_dead", "'w1', 3600, 4, public.heartbeat_of('w1')");
const COMPLETE_CLAIMED: Call = ("complete_claimed_queued", "'w2', '{ids}', '{times}', '{queues}'");
const FAIL_CLAIMED: Call = (
    "fail_claimed",
    "'w2', '{ids}', '{times}', '{queues}', '{errors}', '{nulls}', '{zeros}', '{nulls}', '{falses}'",
);
const RETURN_CLAIMED: Call = ("return_claimed", "'w2', '{ids}', '{times}', '{queues}', 0");

/// A name, the worlds, and the transactions.
type Named = (&'static str, &'static [World], &'static [&'static [Call]]);

/// The statements of a worker: they never wait for a row.
const NEVER_WAITING: [Named; 39] = [
    ("claim_one", BOTH, &[&[CLAIM_ONE]]),
    ("claim_all", BOTH, &[&[CLAIM_ALL]]),
    ("claim_queued", MIXED, &[&[CLAIM_QUEUED]]),
    ("claim_w1", BOTH, &[&[CLAIM_W1]]),
    ("claim_w0", BOTH, &[&[CLAIM_W0]]),
    ("claim_level", PLAIN, &[&[CLAIM_LEVEL]]),
    ("claim_one_by_one", BOTH, &[&[FIND_CLAIMABLE, ("mark_claimed", "'w2', {id}, {queue}, null")]]),
    ("claim_then_complete", BOTH, &[&[CLAIM_ALL], &[COMPLETE_CLAIMED]]),
    ("claim_then_fail", BOTH, &[&[CLAIM_ALL], &[FAIL_CLAIMED]]),
    ("claim_then_return", MIXED, &[&[CLAIM_QUEUED], &[RETURN_CLAIMED]]),
    ("pick_complete", BOTH, &[&[PICK, ("complete_held", "'{places}'")]]),
    ("pick_fail", BOTH, &[&[PICK_LEVEL, FAIL_PICKED]]),
    ("pick_promote", BOTH, &[&[PICK_LEVEL, ("promote_held", "'w2', '{ids}'")]]),
    ("pick_postpone", PLAIN, &[&[PICK, ("postpone_held", "'{ids}', 60")]]),
    ("pick_flagged", MIXED, &[&[PICK_FLAGGED, ("complete_held", "'{places}'")]]),
    (
        "promote_untouched",
        BOTH,
        &[&[("promote_untouched", "'w1', '{3,4,5}', '{0,0,0}', '{0,0,0}', '{{t},{t},{t}}'")]],
    ),
    ("complete_claimed", BOTH, &[&[("complete_claimed", "'w1', '{5}', '{{t}}'")]]),
    (
        "complete_queued",
        MIXED,
        &[&[("complete_claimed_queued", "'w1', '{5,6,14}', '{{t},{t},{t-2h}}', '{null,2,6}'")]],
    ),
    (
        "fail_claimed",
        BOTH,
        &[&[(
            "fail_claimed",
            "'w1', '{5,6}', '{{t},{t}}', '{null,2}', '{no,no}', '{null,null}', '{0,0}', '{null,null}', '{f,f}'",
        )]],
    ),
    (
        "fail_permanently",
        MIXED,
        &[&[("fail_claimed", "'w1', '{6}', '{{t}}', '{2}', '{no}', '{null}', '{null}', '{null}', '{true}'")]],
    ),
    (
        "return_claimed",
        BOTH,
        &[&[("return_claimed", "'w1', '{5,6,14}', '{{t},{t},{t-2h}}', '{null,2,6}', 0")]],
    ),
    (
        "return_unknown",
        BOTH,
        &[
            &[("find_unknown", "'w1', '{14}', '{6}'")],
            &[("return_claimed", "'w1', '{ids}', '{times}', '{queues}', 0")],
        ],
    ),
    ("refresh_locks", BOTH, &[&[("refresh_locks", "'w1', '{5,6,14}'")]]),
    // Releases by a worker that was declared dead.
    ("complete_dead", MIXED, &[&[("complete_claimed_queued", "'w0', '{8,10}', '{{t},{t}}', '{3,null}'")]]),
    ("return_dead", MIXED, &[&[("return_claimed", "'w0', '{8,10}', '{{t},{t}}', '{3,null}', 0")]]),
    (
        "fail_dead",
        BOTH,
        &[&[(
            "fail_claimed",
            "'w0', '{8,10}', '{{t},{t}}', '{3,null}', '{no,no}', '{null,null}', '{0,0}', '{null,null}', '{f,f}'",
        )]],
    ),
    // Releases of claims that were lost before the case: nothing may change but a queue with their time.
    (
        "complete_lost",
        BOTH,
        &[&[(
            "complete_claimed_queued",
            "'w1', '{1,3,5,6}', '{{t-1m},{t-1m},{t-1m},{t-1m}}', '{1,null,null,2}'",
        )]],
    ),
    ("return_lost", MIXED, &[&[("return_claimed", "'w1', '{1,6,99}', '{{t-1m},{t-1m},{t}}', '{1,2,6}', 0")]]),
    ("complete_unclaimed", BOTH, &[&[("complete_claimed", "'w1', '{3,4,5,10}', '{{t},{t},{t-1m},{t}}'")]]),
    ("declare_dead", BOTH, &[&[DECLARE_DEAD]]),
    ("recover_workers", BOTH, &[&[("recover_workers", "3, 1000, false, 0")]]),
    ("recover_orphans", BOTH, &[&[("recover_workers", "3, 1000, true, 0")]]),
    ("recover_last", MIXED, &[&[("recover_workers", "1, 1, false, 0")]]),
    (
        "recover_all",
        MIXED,
        &[&[DECLARE_DEAD], &[("recover_workers", "3, 1000, true, 0")], &[("forget_workers", "")]],
    ),
    ("forget_workers", BOTH, &[&[("forget_workers", "")]]),
    ("sweep", MIXED, &[&[("sweep_stale_locks", "")]]),
    ("claim_complete_claim", PLAIN, &[&[CLAIM_LEVEL], &[("complete_claimed", "'w2', '{ids}', '{times}'")]]),
    (
        "claim_w1_then_lost",
        MIXED,
        &[&[CLAIM_W1], &[("complete_claimed_queued", "'w1', '{6}', '{{t}}', '{2}'")]],
    ),
    ("pick_two", PLAIN, &[&[PICK], &[PICK_LEVEL, ("complete_held", "'{places}'")]]),
];

/// Statements of a worker that may wait for a row, and of clean-ups.
const OTHERS: [Named; 9] = [
    ("complete_claim", BOTH, &[&[("complete_claim", "'w1', '{5,3}', '{t}'")]]),
    ("complete_many", BOTH, &[&[("complete_many_claimed", "'w1', '{5,4}', '{{t},{t}}'")]]),
    ("register_dead", BOTH, &[&[("register_worker", "'w0', 'host', 3, '0', '{a}', 1, 0.001")]]),
    ("heartbeat", BOTH, &[&[("heartbeat", "'ws'")]]),
    ("deregister", BOTH, &[&[("deregister_worker", "'ws'")]]),
    ("recover_function", MIXED, &[&[("recover_function", "'{w0,node}'")]]),
    ("delete_permafailed", BOTH, &[&[("delete_permafailed_jobs", "")]]),
    ("clean_tasks", BOTH, &[&[("lock_tasks", ""), ("delete_unused_tasks", "'{}'")]]),
    ("clean_queues", BOTH, &[&[("lock_job_queues", ""), ("delete_unused_job_queues", "")]]),
];

/// The adds that also run at repeatable read and serializable: each path through the functions.
const STRICT: [&str; 9] = [
    "add_plain",
    "add_unused",
    "add_fresh",
    "add_replace_free",
    "add_replace_running",
    "add_replace_new",
    "add_dedupe_free",
    "add_batch_plain",
    "add_batch_back",
];

/// All actors, some of the adds at each level of isolation.
pub(crate) fn all() -> Vec<Actor> {
    let waiting = WAITING.iter().map(|(name, worlds, call)| actor(name, Waits::ForRows, worlds, &[&[*call]]));
    let never = NEVER_WAITING
        .iter()
        .map(|(name, worlds, transactions)| actor(name, Waits::Never, worlds, transactions));
    let others =
        OTHERS.iter().map(|(name, worlds, transactions)| actor(name, Waits::ForRows, worlds, transactions));
    let mut actors: Vec<Actor> = waiting.chain(never).chain(others).collect();
    let is_strict_too = |actor: &&Actor| STRICT.contains(&actor.name.as_str());
    let adds: Vec<Actor> = actors.iter().filter(is_strict_too).cloned().collect();
    for add in adds {
        actors.push(add.at(Isolation::RepeatableRead, "_rr"));
        actors.push(add.at(Isolation::Serializable, "_ser"));
    }
    actors
}
