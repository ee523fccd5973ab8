//! The steps of a sequence, as data. Each names rows and claims by a number that is reduced to those that exist, so that a
//! sequence has a meaning also without some of its steps.

use super::super::model::AddMode;

pub(super) const WORKERS: usize = 3;
pub(super) const LANES: usize = 2;
pub(super) const SESSIONS: usize = 2;
pub(super) const QUEUES: usize = 3;
pub(super) const FLAGS: [&str; 2] = ["x", "y"];

/// How a run of a job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Complete,
    Fail,
    Return,
}

#[derive(Clone, Debug)]
pub(super) enum Operation {
    Add {
        session: usize,
        add: Add,
        is_open: bool,
    },
    AddInvalid(usize),
    Remove {
        session: usize,
        key: usize,
        is_open: bool,
    },
    LockRow {
        session: usize,
        which: usize,
    },
    EndTransaction {
        session: usize,
        commits: bool,
    },
    Claim {
        worker: usize,
        tasks: u8,
        unqueued: u8,
        count: usize,
        before: Option<usize>,
        forbids: bool,
        looks_ahead: bool,
        /// A job that is not to be claimed.
        left_out: Option<usize>,
        /// Each job by a statement of its own.
        one_by_one: bool,
    },
    /// From now on a trigger refuses the claims of jobs whose ids are multiples of this number. Zero: no claim.
    Refuse {
        divisor: i64,
    },
    ClaimLevel {
        worker: usize,
        unqueued: u8,
        count: usize,
        from_start: bool,
        with_ahead: bool,
    },
    Pick {
        worker: usize,
        lane: usize,
        is_flagged: bool,
        levels: u16,
        count: usize,
        after: Option<usize>,
        before: Option<usize>,
    },
    Settle {
        worker: usize,
        lane: usize,
        outcomes: u64,
    },
    Lose {
        worker: usize,
        lane: usize,
    },
    PromoteUntouched {
        worker: usize,
        which: usize,
    },
    Release {
        worker: usize,
        end: End,
        which: u16,
        is_quick: bool,
    },
    FindUnknown {
        worker: usize,
        known: u16,
    },
    /// Returns what the worker's last search has found. Much may have changed since.
    ReturnUnknown {
        worker: usize,
    },
    RefreshLocks {
        worker: usize,
    },
    Heartbeat {
        worker: usize,
    },
    Deregister {
        worker: usize,
    },
    Poll {
        worker: usize,
        is_continuous: bool,
        for_jobs: bool,
        forbids: bool,
    },
    DeclareDead {
        worker: usize,
        is_continuous: bool,
    },
    Recover {
        worker: usize,
        with_orphans: bool,
    },
    ForgetWorkers {
        worker: usize,
    },
    Advance {
        seconds: u32,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Add {
    pub(super) task: usize,
    pub(super) priority: i16,
    /// In how many seconds it is due.
    pub(super) due: i64,
    pub(super) queue: Option<usize>,
    pub(super) max_attempts: i16,
    pub(super) key: Option<usize>,
    pub(super) mode: AddMode,
    pub(super) flag: Option<usize>,
}

fn maybe<T>(
    random: &mut fastrand::Rng,
    share: f64,
    value: impl FnOnce(&mut fastrand::Rng) -> T,
) -> Option<T> {
    (random.f64() < share).then(|| value(random))
}

/// Which jobs a sequence is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Theme {
    Mixed,
    Queues,
    /// Jobs of one task and priority, which level claims take.
    OneLevel,
    /// Workers that die while they have jobs.
    Deaths,
}

impl Add {
    fn of(theme: Theme, random: &mut fastrand::Rng) -> Add {
        let add = Add::any(random);
        match theme {
            Theme::Mixed => add,
            Theme::Deaths => Add { due: -60, max_attempts: 25, flag: None, ..add },
            Theme::Queues => Add { queue: Some(random.usize(..QUEUES)), ..add },
            Theme::OneLevel => Add { task: 0, priority: 0, queue: None, key: None, flag: None, ..add },
        }
    }

    fn any(random: &mut fastrand::Rng) -> Add {
        Add {
            task: random.usize(..3),
            priority: random.i16(-1..2),
            due: *random.choice(&[-600, -60, 0, 0, 0, 120]).unwrap_or(&0),
            queue: maybe(random, 0.35, |random| random.usize(..QUEUES)),
            max_attempts: *random.choice(&[1, 2, 25, 25]).unwrap_or(&25),
            key: maybe(random, 0.55, |random| random.usize(..2)),
            mode: *random
                .choice(&[AddMode::Replace, AddMode::Replace, AddMode::PreserveRunAt, AddMode::UnsafeDedupe])
                .unwrap_or(&AddMode::Replace),
            flag: maybe(random, 0.25, |random| random.usize(..FLAGS.len())),
        }
    }
}

impl Operation {
    /// A sequence begins with some jobs.
    pub(super) fn sequence(random: &mut fastrand::Rng) -> Vec<Operation> {
        let theme = *random
            .choice(&[Theme::Mixed, Theme::Queues, Theme::OneLevel, Theme::Deaths])
            .unwrap_or(&Theme::Mixed);
        let (adds, others) = (random.usize(1..8), random.usize(3..35));
        let mut sequence = Vec::new();
        for _ in 0..adds {
            sequence.push(Operation::Add { session: 0, add: Add::of(theme, random), is_open: false });
        }
        if theme == Theme::Deaths {
            sequence.extend(Operation::deaths(random));
            return sequence;
        }
        for _ in 0..others {
            sequence.push(Operation::any(theme, random));
        }
        sequence
    }

    /// The first worker dies with its jobs a few times, and the second recovers them. Some steps are missing, and others
    /// come in between.
    fn deaths(random: &mut fastrand::Rng) -> Vec<Operation> {
        let mut steps = Vec::new();
        for _ in 0..3 {
            let claim = Operation::Claim {
                worker: 0,
                tasks: 7,
                unqueued: 7,
                count: random.usize(1..4),
                before: None,
                forbids: false,
                looks_ahead: false,
                left_out: None,
                one_by_one: false,
            };
            let cycle = [
                Operation::Heartbeat { worker: 0 },
                claim,
                Operation::Advance { seconds: 60 },
                Operation::Heartbeat { worker: 1 },
                Operation::Poll { worker: 1, is_continuous: true, for_jobs: true, forbids: false },
                Operation::DeclareDead { worker: 1, is_continuous: true },
                Operation::Recover { worker: 1, with_orphans: random.u8(..4) == 0 },
                Operation::ForgetWorkers { worker: 1 },
                Operation::Advance { seconds: 60 },
            ];
            for step in cycle {
                if random.u8(..12) > 0 {
                    steps.push(step);
                }
                if random.u8(..6) == 0 {
                    steps.push(Operation::any(Theme::Mixed, random));
                }
            }
        }
        steps
    }

    fn any(theme: Theme, random: &mut fastrand::Rng) -> Operation {
        let (worker, lane, session) =
            (random.usize(..WORKERS), random.usize(..LANES), random.usize(..SESSIONS));
        let any = |random: &mut fastrand::Rng| random.usize(..);
        match random.u8(..106) {
            0..=15 => Operation::Add { session, add: Add::of(theme, random), is_open: random.u8(..3) == 0 },
            16 => Operation::AddInvalid(random.usize(..)),
            17..=20 => Operation::Remove { session, key: random.usize(..2), is_open: random.bool() },
            21..=28 => Operation::LockRow { session, which: random.usize(..) },
            29..=34 => Operation::EndTransaction { session, commits: random.u8(..3) > 0 },
            35..=46 => Operation::Claim {
                worker,
                tasks: random.u8(..8) | random.u8(..8),
                unqueued: random.u8(..8),
                count: random.usize(1..5),
                before: maybe(random, 0.3, any),
                forbids: random.bool(),
                looks_ahead: random.bool(),
                left_out: maybe(random, 0.3, any),
                one_by_one: random.u8(..4) == 0,
            },
            47..=50 => Operation::ClaimLevel {
                worker,
                unqueued: random.u8(..8) | 1,
                count: random.usize(1..4),
                from_start: random.bool(),
                with_ahead: random.bool(),
            },
            51..=61 => Operation::Pick {
                worker,
                lane,
                is_flagged: random.u8(..4) == 0,
                levels: random.u16(..512) | random.u16(..512),
                count: random.usize(1..6),
                after: maybe(random, 0.3, any),
                before: maybe(random, 0.3, any),
            },
            62..=69 => Operation::Settle { worker, lane, outcomes: random.u64(..) },
            70..=72 => Operation::Lose { worker, lane },
            73..=75 => Operation::PromoteUntouched { worker, which: random.usize(..) },
            76..=83 => Operation::Release {
                worker,
                end: *random
                    .choice(&[End::Complete, End::Complete, End::Fail, End::Return])
                    .unwrap_or(&End::Fail),
                which: random.u16(..),
                is_quick: random.bool(),
            },
            84 | 97 => Operation::FindUnknown { worker, known: random.u16(..) },
            85 => Operation::RefreshLocks { worker },
            86..=88 => Operation::Heartbeat { worker },
            89 => Operation::Deregister { worker },
            90 | 91 => Operation::Poll {
                worker,
                is_continuous: random.bool(),
                for_jobs: random.u8(..4) > 0,
                forbids: random.bool(),
            },
            92 | 93 => Operation::DeclareDead { worker, is_continuous: random.u8(..4) > 0 },
            94 | 95 => Operation::Recover { worker, with_orphans: random.bool() },
            96 => Operation::ForgetWorkers { worker },
            100..=102 => Operation::ReturnUnknown { worker },
            103..=105 => Operation::Refuse { divisor: *random.choice(&[0, 0, 1, 2, 3]).unwrap_or(&0) },
            _ => Operation::Advance { seconds: *random.choice(&[60, 60, 120, 600, 7200]).unwrap_or(&60) },
        }
    }
}
