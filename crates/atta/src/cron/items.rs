//! The list of crontab items that a worker has: shared, and changeable while the worker runs.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};

use super::Cron;
use super::moment::Minute;
use super::plan;
use crate::{Error, Result};

/// The crontab items of a worker. A clone is another handle to the same list; a change takes effect from the next
/// minute on.
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

    /// Adds an item. Returns an error if it is invalid, or if there already is an item with its identifier.
    pub fn add(&self, item: Cron) -> Result<()> {
        self.lock().add(item)
    }

    /// Adds all items, or none if one of them can't be added.
    pub fn extend(&self, more: impl IntoIterator<Item = Cron>) -> Result<()> {
        // Collected before the list is locked, because the iterator may use the list itself.
        let more: Vec<Cron> = more.into_iter().collect();
        let mut list = self.lock();
        let mut longer = list.clone();
        more.into_iter().try_for_each(|item| longer.add(item))?;
        *list = longer;
        Ok(())
    }

    /// Removes the item with that identifier, if there is one. Jobs that it has added stay.
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

    /// The items that are due in the minute of `time`.
    pub fn due(&self, time: DateTime<Utc>) -> Vec<Cron> {
        plan::due(&self.snapshot(), Minute::of(time)).into_iter().map(Arc::unwrap_or_clone).collect()
    }

    pub(super) fn snapshot(&self) -> Vec<Arc<Cron>> {
        self.lock().items.clone()
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        // No code that holds this lock can panic half-way.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl List {
    fn add(&mut self, item: Cron) -> Result<()> {
        item.check()?;
        if !self.identifiers.insert(item.identifier().to_owned()) {
            let message = format!("two cron items have the identifier {:?}", item.identifier());
            return Err(Error::config(message).with_hint("give one of them another id"));
        }
        self.items.push(Arc::new(item));
        Ok(())
    }
}
