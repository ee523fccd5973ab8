//! Waiting for a condition, never for time to pass.

use std::future::Future;
use std::time::{Duration, Instant};

/// How long a test waits for a condition, on a machine that may be busy with other tests.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Calls `ask` repeatedly until it returns `Some`, and fails the test after [`DEADLINE`].
///
/// `what` completes the sentence "gave up waiting for …".
pub async fn wait_for<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(start.elapsed() < DEADLINE, "gave up waiting for {what}");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
