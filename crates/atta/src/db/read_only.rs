//! Sessions that are read-only from their start, because of `default_transaction_read_only` of their role or database.
//!
//! A session keeps the value with which it started: when the setting is reset, only new sessions may write. Therefore a
//! pool closes such sessions after a short while instead of using them again. Until the setting is reset, that costs a
//! few connections per second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::connect::Connection;

/// How long a read-only session is used.
const LIFETIME: Duration = Duration::from_secs(2);

/// A pool records the time of a connection a moment after it was opened. Connections that were opened within this time
/// of a read-only session are closed with it, which does no harm.
const TOLERANCE: Duration = Duration::from_secs(1);

/// From this version on the server reports the setting at the start of a session.
const REPORTED_SINCE: u32 = 14;

/// When a pool last opened a read-only session.
#[derive(Debug, Default)]
pub(super) struct ReadOnlySessions {
    opened_at: Mutex<Option<Instant>>,
}

impl ReadOnlySessions {
    pub(super) fn note(&self, now: Instant) {
        *self.opened_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// Whether a connection that was opened at `created` is closed instead of used again.
    pub(super) fn is_over(&self, created: Instant, now: Instant) -> bool {
        let opened_at = *self.opened_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = now.saturating_duration_since(created) >= LIFETIME;
        is_old && opened_at.is_some_and(|opened_at| created <= opened_at + TOLERANCE)
    }
}

/// The value of the setting that the server reports. None if it does not report it.
pub(super) fn reported(connection: &Connection) -> Option<bool> {
    if let Some(value) = connection.parameter("default_transaction_read_only") {
        return Some(value == "on");
    }
    // A pooler forwards only some of the parameters that the server reports, and shares sessions that we must not
    // close.
    let version = connection.parameter("server_version")?.split('.').next()?;
    (version.parse::<u32>().ok()? >= REPORTED_SINCE).then_some(false)
}

/// Queries a server that does not report the setting. If it does not answer, the next statement reports why.
pub(super) async fn ask(client: &Client) -> bool {
    let rows = client.simple_query("show default_transaction_read_only").await.unwrap_or_default();
    rows.iter().any(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0) == Some("on"),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sessions_from_the_read_only_time_are_closed_and_not_at_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let sessions = ReadOnlySessions::default();
        assert!(!sessions.is_over(start, at(60)));
        sessions.note(at(10));
        assert!(sessions.is_over(at(10), at(60)));
        assert!(!sessions.is_over(at(10), at(11)));
        assert!(!sessions.is_over(at(12), at(60)));
    }
}
