//! Pauses between attempts to reach the database: twice as long each time, up to a limit, with random jitter.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
/// The default poll interval, so that the retries of many workers cost the server no more than their polls. Because the
/// pause is this short, work continues as soon after an outage of half a minute as after one of a second.
const LONGEST: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(crate) struct Backoff {
    tries: u32,
}

impl Backoff {
    pub(crate) fn next(&mut self) -> Duration {
        let pause = FIRST.saturating_mul(1 << self.tries.min(10)).min(LONGEST);
        self.tries += 1;
        pause.mul_f64(0.5 + fastrand::f64())
    }

    pub(crate) fn tries(&self) -> u32 {
        self.tries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_its_limit_and_no_further() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..50).map(|_| backoff.next()).collect();
        assert!(pauses[0] >= FIRST / 2 && pauses[0] <= FIRST * 3 / 2);
        assert!(pauses[49] >= LONGEST / 2 && pauses[49] <= LONGEST * 3 / 2);
        assert!(pauses.iter().all(|pause| *pause <= Duration::from_secs(3)), "work goes on within seconds");
    }
}
