//! When the failed jobs of a task are retried.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Retry, TaskError};
use crate::Job;

type Choose = Arc<dyn Fn(&Job, &str) -> Retry + Send + Sync>;

/// When the failed jobs of a task are retried.
#[derive(Clone)]
pub struct RetryPolicy {
    choose: Choose,
    jitter: f64,
}

impl Default for RetryPolicy {
    /// Graphile's back-off, without jitter.
    fn default() -> RetryPolicy {
        RetryPolicy::new(|_, _| Retry::Backoff)
    }
}

impl RetryPolicy {
    /// Decides by a function of the job and the error's text. The job's attempts include the one that failed.
    pub fn new(choose: impl Fn(&Job, &str) -> Retry + Send + Sync + 'static) -> RetryPolicy {
        RetryPolicy { choose: Arc::new(choose), jitter: 0.0 }
    }

    /// Always retries after the same time.
    pub fn fixed(delay: Duration) -> RetryPolicy {
        RetryPolicy::new(move |_, _| Retry::In(delay))
    }

    /// Never retries after a failure.
    pub fn never() -> RetryPolicy {
        RetryPolicy::new(|_, _| Retry::Never)
    }

    /// Makes each delay longer by a random part of it, up to `part`: 0.25 adds up to a quarter. With jitter, the jobs
    /// that failed in one outage are not all retried in the same second.
    #[must_use]
    pub fn with_jitter(mut self, part: f64) -> RetryPolicy {
        self.jitter = part.max(0.0);
        self
    }

    /// When the job is retried after this error.
    pub(crate) fn decide(&self, job: &Job, error: &TaskError) -> Retry {
        let retry = error.retry().unwrap_or_else(|| (self.choose)(job, error.message()));
        if self.jitter == 0.0 {
            return retry;
        }
        // A delay that is far too long, or has too much jitter, must not panic here: the release limits it.
        let stretched = |delay: Duration| {
            let seconds = delay.as_secs_f64() * (1.0 + self.jitter * fastrand::f64());
            Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
        };
        match retry {
            Retry::Backoff => Retry::In(stretched(backoff(job.attempts))),
            Retry::In(delay) => Retry::In(stretched(delay)),
            chosen => chosen,
        }
    }
}

impl fmt::Debug for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryPolicy").field("jitter", &self.jitter).finish_non_exhaustive()
    }
}

/// Graphile's back-off, as the SQL computes it.
fn backoff(attempts: i16) -> Duration {
    Duration::from_secs_f64(f64::from(attempts.clamp(0, 10)).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_back_off_is_graphiles() {
        let seconds: Vec<u64> = (1..=12).map(|attempt| backoff(attempt).as_secs()).collect();
        assert_eq!(seconds, [2, 7, 20, 54, 148, 403, 1096, 2980, 8103, 22026, 22026, 22026]);
    }
}
