//! What happens when the future of an async function of the library is dropped before it has ended: by
//! `tokio::time::timeout`, by `tokio::select!`, or because a client of a web server has disconnected.
//!
//! Every public async function is dropped after each of its polls, with every connection or transaction that can add
//! jobs. No acknowledged job may be lost, no partial change may be visible, and the connection or the pool must work
//! afterwards. [`coverage`] fails if a function or a connection is missing here.

mod callers;
mod connections;
mod coverage;
mod functions;
mod migrations;
mod workers;
mod world;

use std::future::{Future, poll_fn};
use std::task::Poll;

/// More polls than any of these functions needs. A function that needs more has to be examined.
const MOST_POLLS: usize = 1_000;

/// When a future is dropped after its last poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drops {
    /// At once: the request is sent, and there is no reply yet.
    AtOnce,
    /// When it would be polled again: the reply has arrived, but was not read.
    AfterWake,
}

impl Drops {
    const BOTH: [Drops; 2] = [Drops::AtOnce, Drops::AfterWake];
}

/// Polls a future `polls` times and drops it. Returns its output if it ended before.
async fn poll_and_drop<F: Future>(future: F, polls: usize, drops: Drops) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = polls;
    poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 && drops == Drops::AtOnce => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
