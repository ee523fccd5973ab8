//! Which actors meet, and which of their orders run.

use std::collections::{BTreeMap, BTreeSet};
use std::env;

use crate::actors::{self, Actor, Isolation};
use crate::case::{Group, Part};
use crate::world::World;

/// The seed of the sample. Another value takes another sample.
const SEED: u64 = 16;
/// How many groups a sample has; one order of each is run.
const SAMPLE: usize = 1500;

/// Three actors that work on the same job: a claim that is lost, the recovery or the unlock that ends it, and a
/// statement that follows.
const TRIPLES: [[&str; 3]; 22] = [
    ["claim_one", "recover_workers", "complete_dead"],
    ["claim_queued", "recover_workers", "return_dead"],
    ["claim_w0", "recover_workers", "complete_dead"],
    ["claim_w0", "recover_orphans", "return_dead"],
    ["claim_w0", "register_dead", "recover_workers"],
    ["claim_w1", "unlock_jobs", "complete_queued"],
    ["claim_w1", "unlock_jobs", "fail_claimed"],
    ["claim_w1", "unlock_jobs", "return_claimed"],
    ["claim_w1", "return_unknown", "complete_queued"],
    ["claim_all", "return_claimed", "refresh_locks"],
    ["claim_all", "fail_claimed", "add_replace_running"],
    ["claim_all", "complete_claimed", "add_replace_running"],
    ["claim_all", "add_replace_free", "add_replace_free"],
    ["claim_all", "add_replace_free", "remove_free"],
    ["claim_queued", "add_replace_queued", "complete_queued"],
    ["pick_complete", "add_replace_free", "remove_free"],
    ["pick_promote", "promote_untouched", "add_dedupe_free"],
    ["add_replace_new", "add_dedupe_new", "claim_all"],
    ["add_batch_keys", "add_batch_back", "complete_claimed"],
    ["add_unused", "clean_tasks", "clean_queues"],
    ["sweep", "add_replace_stale", "remove_stale"],
    ["declare_dead", "recover_workers", "forget_workers"],
];

/// What this run is to do.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    Sample,
    /// All cases of all groups in which all actors of these names take part.
    All(Vec<String>),
    /// The orders of one group, or one of them.
    One(Box<Group>, Option<Vec<usize>>),
}

impl Wanted {
    /// From `ATTA_INTERLEAVINGS`: see `main.rs`.
    pub(crate) fn of_this_run() -> Wanted {
        match env::var("ATTA_INTERLEAVINGS").as_deref() {
            Err(_) | Ok("") => Wanted::Sample,
            Ok(words) => match words.strip_prefix("all") {
                Some(names) => Wanted::All(names.split_whitespace().map(str::to_owned).collect()),
                None => parse(words),
            },
        }
    }

    pub(crate) fn groups(&self) -> Vec<Group> {
        match self {
            Wanted::All(names) => {
                let has =
                    |group: &Group, name: &String| group.parts.iter().any(|part| part.actor.name == *name);
                all().into_iter().filter(|group| names.iter().all(|name| has(group, name))).collect()
            }
            Wanted::One(group, _) => vec![(**group).clone()],
            Wanted::Sample => {
                let mut groups = all();
                let more: Vec<Group> = groups.iter().flat_map(|group| variants(group, &Met::all())).collect();
                groups.extend(more);
                let mut random = fastrand::Rng::with_seed(SEED);
                random.shuffle(&mut groups);
                groups.truncate(SAMPLE);
                groups
            }
        }
    }

    /// In a sample, one order at random; the same one in each run.
    pub(crate) fn random(&self, group: &Group) -> Option<fastrand::Rng> {
        let seed = name(group).bytes().fold(SEED, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
        matches!(self, Wanted::Sample).then(|| fastrand::Rng::with_seed(seed))
    }

    /// The order to begin with.
    pub(crate) fn order(&self) -> Vec<usize> {
        match self {
            Wanted::One(_, Some(order)) => order.clone(),
            _ => Vec::new(),
        }
    }
}

/// All groups in which no statement pauses and all actors commit.
fn all() -> Vec<Group> {
    let actors = actors::all();
    let mut groups = Vec::new();
    for (number, first) in actors.iter().enumerate() {
        for second in &actors[number..] {
            for world in first.worlds.iter().filter(|world| second.worlds.contains(world)) {
                if may_meet(*world, first, second) {
                    let parts = vec![part(first, false, false), part(second, false, false)];
                    groups.push(Group { world: *world, parts });
                }
            }
        }
    }
    let find = |name: &str| actors.iter().find(|actor| actor.name == name).expect("an actor");
    for names in TRIPLES {
        let parts: Vec<Part> = names.iter().map(|name| part(find(name), false, false)).collect();
        let worlds = parts[0].actor.worlds.iter();
        let worlds = worlds.filter(|world| parts.iter().all(|part| part.actor.worlds.contains(world)));
        groups.extend(worlds.map(|world| Group { world: *world, parts: parts.clone() }));
    }
    groups
}

fn part(actor: &Actor, is_gated: bool, rolls_back: bool) -> Part {
    Part { actor: actor.clone(), is_gated, rolls_back }
}

/// Which pairs are of use. Locks of workers that are known to be gone are freed by force: no such worker may claim at the
/// same time. Statements on the table of workers alone meet only those that read it. The stricter levels of isolation meet
/// read committed and themselves. In the plain world, one of the two takes jobs.
fn may_meet(world: World, first: &Actor, second: &Actor) -> bool {
    let both = |is_first: fn(&Actor) -> bool, is_second: fn(&Actor) -> bool| {
        is_first(first) && is_second(second) || is_first(second) && is_second(first)
    };
    let is_any = |is_so: fn(&Actor) -> bool| is_so(first) || is_so(second);
    let is_force = |actor: &Actor| matches!(actor.name.as_str(), "force_unlock_workers" | "recover_function");
    let is_back = |actor: &Actor| matches!(actor.name.as_str(), "claim_w0" | "register_dead");
    let is_strict = |actor: &Actor| actor.isolation != Isolation::ReadCommitted;
    if both(is_force, is_back) || both(is_strict, is_strict) && first.isolation != second.isolation {
        return false;
    }
    if is_any(Actor::is_of_workers) && !both(Actor::is_of_workers, Actor::reads_workers) {
        return false;
    }
    world == World::Mixed || is_any(Actor::is_for_plain)
}

/// What the orders of a group have shown in which both actors commit and none pauses.
#[derive(Debug, Default)]
pub(crate) struct Met {
    /// The actors that others waited for.
    pub(crate) awaited: BTreeSet<usize>,
    /// The rows that each actor changed, in any order: whether they are jobs, and their ids.
    pub(crate) changed: BTreeMap<usize, BTreeSet<(bool, i64)>>,
    pub(crate) has_failed: bool,
}

impl Met {
    fn all() -> Met {
        Met { awaited: [0, 1].into(), changed: BTreeMap::new(), has_failed: true }
    }

    /// Whether the actors have anything to do with each other.
    fn is_shared(&self) -> bool {
        let of = |part: usize| self.changed.get(&part).cloned().unwrap_or_default();
        self.has_failed || !self.awaited.is_empty() || !of(0).is_disjoint(&of(1))
    }
}

/// More cases of a pair: an actor that the other one has waited for rolls back; and, if they share a row, the first
/// statements of both pause after their snapshots.
pub(crate) fn variants(group: &Group, met: &Met) -> Vec<Group> {
    let [first, second] = &group.parts[..] else { return Vec::new() };
    let (first, second) = (&first.actor, &second.actor);
    let is_strict = |actor: &Actor| actor.isolation != Isolation::ReadCommitted;
    if is_strict(first) || is_strict(second) {
        return Vec::new();
    }
    let variant = |parts: [Part; 2]| Group { world: group.world, parts: parts.into() };
    let mut groups = Vec::new();
    if met.awaited.contains(&0) {
        groups.push(variant([part(first, false, true), part(second, false, false)]));
    }
    if met.awaited.contains(&1) && first.name != second.name {
        groups.push(variant([part(first, false, false), part(second, false, true)]));
    }
    let has_gate = |actor: &Actor| {
        actor.transactions.len() == 1 && !actor.name.starts_with("pick_") && !actor.locks_tables()
    };
    if met.is_shared() && (has_gate(first) || has_gate(second)) {
        groups.push(variant([part(first, has_gate(first), false), part(second, has_gate(second), false)]));
    }
    groups
}

/// The name by which a group is found again.
pub(crate) fn name(group: &Group) -> String {
    let parts = group.parts.iter().map(|part| {
        let (gate, end) = (if part.is_gated { "^" } else { "" }, if part.rolls_back { "!" } else { "" });
        format!("{gate}{}{end}", part.actor.name)
    });
    format!("{} {}", group.world.name(), parts.collect::<Vec<_>>().join(" "))
}

/// An order as letters: A is the first actor.
pub(crate) fn letters(order: &[usize]) -> String {
    order.iter().map(|number| ["A", "B", "C"][*number]).collect()
}

/// Reads the name of a group, with or without an order.
pub(crate) fn parse(words: &str) -> Wanted {
    let actors = actors::all();
    let mut words: Vec<&str> = words.split_whitespace().collect();
    let is_order = |word: &&&str| word.chars().all(|letter| ('A'..='C').contains(&letter));
    let order = words
        .last()
        .filter(is_order)
        .map(|word| word.bytes().map(|letter| usize::from(letter - b'A')).collect());
    if order.is_some() {
        words.pop();
    }
    let world = match words.first() {
        Some(&"mixed") => World::Mixed,
        Some(&"plain") => World::Plain,
        _ => panic!("ATTA_INTERLEAVINGS begins with mixed or plain, or is all"),
    };
    let parts = words[1..].iter().map(|word| {
        let name = word.trim_start_matches('^').trim_end_matches('!');
        let actor = actors.iter().find(|actor| actor.name == name);
        part(
            actor.unwrap_or_else(|| panic!("no actor is named {name}")),
            word.starts_with('^'),
            word.ends_with('!'),
        )
    });
    Wanted::One(Box::new(Group { world, parts: parts.collect() }), order)
}
