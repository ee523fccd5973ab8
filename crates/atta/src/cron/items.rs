//! The list of cron items that a worker has: shared, and changed while it runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Cron;
use crate::{Error, Result};

/// The cron items of a worker. A clone is another handle on the same list; a change counts from the next minute on.
#[derive(Clone, Debug, Default)]
pub struct CronItems {
    items: Arc<Mutex<Vec<Arc<Cron>>>>,
}

impl CronItems {
    /// An empty list.
    pub fn new() -> CronItems {
        CronItems::default()
    }

    /// Adds an item. An error if it is invalid, or if there is one with its identifier.
    pub fn add(&self, item: Cron) -> Result<()> {
        item.check()?;
        let mut items = self.lock();
        if items.iter().any(|other| other.identifier() == item.identifier()) {
            let message = format!("there is a cron item with the identifier {:?} already", item.identifier());
            return Err(Error::config(message).with_hint("give one of them another id"));
        }
        items.push(Arc::new(item));
        Ok(())
    }

    /// Adds all, or none if one of them can't be.
    pub fn extend(&self, more: impl IntoIterator<Item = Cron>) -> Result<()> {
        let together = CronItems { items: Arc::new(Mutex::new(self.lock().clone())) };
        for item in more {
            together.add(item)?;
        }
        *self.lock() = together.snapshot();
        Ok(())
    }

    /// Takes the item out, if there is one with that identifier. Jobs that it has added stay.
    pub fn remove(&self, identifier: &str) -> Option<Cron> {
        let mut items = self.lock();
        let index = items.iter().position(|item| item.identifier() == identifier)?;
        Some(Arc::unwrap_or_clone(items.remove(index)))
    }

    /// All items, as they are now.
    pub fn list(&self) -> Vec<Cron> {
        self.lock().iter().map(|item| Cron::clone(item)).collect()
    }

    pub(super) fn snapshot(&self) -> Vec<Arc<Cron>> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Cron>>> {
        // Nothing in here can panic half-way.
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
