//! CPU load during the tests: threads of this process that compute, at a lower priority than the tests.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Low enough a priority that the tests get the larger part of each core, and high enough that they wait for one now
/// and then. At 19 the scheduler would hardly ever run the load.
const NICE: i32 = 5;

/// Load that ends when this value is dropped.
pub(super) struct Load {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts two threads per core.
    pub(super) fn start() -> Load {
        let is_over = Arc::new(AtomicBool::new(false));
        let count = 2 * thread::available_parallelism().map_or(2, usize::from);
        let threads = (0..count).map(|_| {
            let is_over = is_over.clone();
            thread::spawn(move || compute(&is_over))
        });
        Load { threads: threads.collect(), is_over }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The thread does not panic; if it did, its load has ended too.
            let _ = thread.join();
        }
    }
}

fn compute(is_over: &AtomicBool) {
    // On Linux this sets the priority of the calling thread alone. If it can't be set, the load is heavier.
    let _ = rustix::process::setpriority_process(None, NICE);
    let mut number = 1_u64;
    while !is_over.load(Ordering::Relaxed) {
        for _ in 0..10_000 {
            number = black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
}
