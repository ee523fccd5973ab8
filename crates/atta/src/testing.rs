//! For the tests of applications: a clock to move.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use chrono::{DateTime, TimeDelta, Utc};

/// A clock that a test can move. Clones move together.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    offset_micros: Arc<AtomicI64>,
}

impl Clock {
    /// This machine's time, until it is moved.
    pub fn system() -> Clock {
        Clock::default()
    }

    /// What it shows.
    pub fn now(&self) -> DateTime<Utc> {
        Utc::now() + TimeDelta::microseconds(self.offset_micros.load(Ordering::Relaxed))
    }

    /// Moves it forward, or back by a negative time.
    pub fn advance(&self, by: TimeDelta) {
        self.offset_micros.fetch_add(by.num_microseconds().unwrap_or(i64::MAX), Ordering::Relaxed);
    }
}
