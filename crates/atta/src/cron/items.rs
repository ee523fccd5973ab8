//! The list of cron items that a worker has: shared, and changed while it runs.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};

use super::Cron;
use super::moment::Minute;
use super::plan;
use crate::{Error, Result};

/// The cron items of a worker. A clone is another handle on the same list; a change counts from the next minute on.
#[derive(Clone, Debug, Default)]
pub struct CronItems {
    list: Arc<Mutex<List>>,
}

/// In the order in which they were added.
#[derive(Clone, Debug, Default)]
struct List {
    items: Vec<Arc<Cron>>,
    identifiers: HashSet<String>,
}

impl CronItems {
    /// An empty list.
    pub fn new() -> CronItems {
        CronItems::default()
    }

    /// Adds an item. An error if it is invalid, or if there is one with its identifier.
    pub fn add(&self, item: Cron) -> Result<()> {
        self.lock().add(item)
    }

    /// Adds all, or none if one of them can't be.
    pub fn extend(&self, more: impl IntoIterator<Item = Cron>) -> Result<()> {
        // Whatever gives the items may want to look at the list.
        let more: Vec<Cron> = more.into_iter().collect();
        let mut list = self.lock();
        let mut longer = list.clone();
        more.into_iter().try_for_each(|item| longer.add(item))?;
        *list = longer;
        Ok(())
    }

    /// Takes the item out, if there is one with that identifier. Jobs that it has added stay.
    pub fn remove(&self, identifier: &str) -> Option<Cron> {
        let mut list = self.lock();
        list.identifiers.remove(identifier);
        let index = list.items.iter().position(|item| item.identifier() == identifier)?;
        Some(Arc::unwrap_or_clone(list.items.remove(index)))
    }

    /// All items, as they are now.
    pub fn list(&self) -> Vec<Cron> {
        self.lock().items.iter().map(|item| Cron::clone(item)).collect()
    }

    /// Those that are due in the minute of `time`.
    pub fn due(&self, time: DateTime<Utc>) -> Vec<Cron> {
        plan::due(&self.snapshot(), Minute::of(time)).into_iter().map(Arc::unwrap_or_clone).collect()
    }

    pub(super) fn snapshot(&self) -> Vec<Arc<Cron>> {
        self.lock().items.clone()
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        // Nothing in here can panic half-way.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl List {
    fn add(&mut self, item: Cron) -> Result<()> {
        item.check()?;
        if !self.identifiers.insert(item.identifier().to_owned()) {
            let message = format!("there is a cron item with the identifier {:?} already", item.identifier());
            return Err(Error::config(message).with_hint("give one of them another id"));
        }
        self.items.push(Arc::new(item));
        Ok(())
    }
}
