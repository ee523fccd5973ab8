//! Forbidden flags: which jobs a worker does not claim for now.
//!
//! A function for them is the application's code and may hang. It runs on the application's runtime, one call at a
//! time. A claim waits for it for at most half a second, and then uses the flags that the function returned last.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::{Error, Result};

/// Jobs with one of these flags are not claimed. A function for them is called before every claim, so the flags can
/// change while the worker runs.
///
/// A function that has not returned after 500 ms is not waited for: until it returns, claims use the flags of its last
/// call. If it has never returned, nothing is claimed. Nothing is claimed either after a call that panicked, until one
/// succeeds. There is never more than one call at a time.
#[derive(Clone, Default)]
pub struct ForbiddenFlags {
    list: Vec<String>,
    /// Its flags are forbidden in addition to those of the list.
    function: Option<Function>,
}

impl ForbiddenFlags {
    /// Forbids these flags at all times.
    pub fn list(flags: impl IntoIterator<Item = impl Into<String>>) -> ForbiddenFlags {
        ForbiddenFlags { list: flags.into_iter().map(Into::into).collect(), function: None }
    }

    /// Forbids the flags that the function returns. It is called before each claim and should be quick.
    pub fn function(function: impl Fn() -> Vec<String> + Send + Sync + 'static) -> ForbiddenFlags {
        ForbiddenFlags::async_function(move || std::future::ready(function()))
    }

    /// Forbids the flags that the async function returns. It is called before each claim and should be quick: claims
    /// wait for it for up to 500 ms.
    pub fn async_function<F>(function: impl Fn() -> F + Send + Sync + 'static) -> ForbiddenFlags
    where
        F: Future<Output = Vec<String>> + Send + 'static,
    {
        ForbiddenFlags { list: Vec::new(), function: Some(Arc::new(move || function().boxed())) }
    }

    pub(crate) fn push(&mut self, flag: String) {
        self.list.push(flag);
    }
}

impl fmt::Debug for ForbiddenFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.list[..], &self.function) {
            ([], None) => f.write_str("none"),
            ([], Some(_)) => f.write_str("a function"),
            (flags, None) => write!(f, "{flags:?}"),
            (flags, Some(_)) => write!(f, "{flags:?} and a function"),
        }
    }
}

/// How long a claim waits for the function.
const LIMIT: Duration = Duration::from_millis(500);

type Function = Arc<dyn Fn() -> BoxFuture<'static, Vec<String>> + Send + Sync>;

/// The forbidden flags of a running worker.
pub(crate) struct FlagReader {
    flags: ForbiddenFlags,
    runtime: Handle,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    call: Option<Call>,
    /// What the last call returned. None if there was no call yet, or the last one panicked.
    known: Option<Vec<String>>,
    is_hung: bool,
}

/// What a call returned: none until it has ended, an error if it panicked.
type Answer = watch::Receiver<Option<Result<Vec<String>, ()>>>;

/// A call of the function.
struct Call {
    since: Instant,
    answer: Answer,
    task: JoinHandle<()>,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FlagReader {
    /// Calls functions on the application's runtime.
    pub(crate) fn new(flags: ForbiddenFlags, runtime: Handle) -> FlagReader {
        FlagReader { flags, runtime, state: Arc::default() }
    }

    /// The flags for the next claim. An error if the function panicked or has never returned: then nothing may be
    /// claimed, since the forbidden flags are unknown.
    pub(crate) async fn now(&self) -> Result<Vec<String>> {
        let mut flags = self.flags.list.clone();
        if let Some(function) = &self.flags.function {
            flags.extend(self.ask(function).await?);
        }
        // No job has a flag with NUL, and PostgreSQL would reject the whole list.
        flags.retain(|flag| !flag.contains('\0'));
        Ok(flags)
    }

    async fn ask(&self, function: &Function) -> Result<Vec<String>> {
        let (since, mut answer) = self.call(function);
        let left = LIMIT.saturating_sub(since.elapsed());
        let answered = match tokio::time::timeout(left, answer.wait_for(Option::is_some)).await {
            Ok(Ok(answer)) => answer.clone(),
            // The application's runtime has ended.
            Ok(Err(_)) => Some(Err(())),
            Err(_) => None,
        };
        let mut state = self.lock();
        match answered {
            Some(answer) => {
                if std::mem::take(&mut state.is_hung) {
                    tracing::info!("the function for forbidden flags returns again");
                }
                answer.map_err(|()| Error::unavailable("the function for forbidden flags panicked"))
            }
            None => {
                if !std::mem::replace(&mut state.is_hung, true) {
                    let has_known = state.known.is_some();
                    tracing::warn!(
                        has_known,
                        "the function for forbidden flags does not return; claims use its last result, if any"
                    );
                }
                let unknown = || Error::unavailable("the function for forbidden flags has not returned yet");
                state.known.clone().ok_or_else(unknown)
            }
        }
    }

    /// The call that is under way, or a new one.
    fn call(&self, function: &Function) -> (Instant, Answer) {
        let mut state = self.lock();
        if let Some(call) = state.call.as_ref().filter(|call| !call.task.is_finished()) {
            return (call.since, call.answer.clone());
        }
        let (sender, answer) = watch::channel(None);
        let (function, shared) = (function.clone(), self.state.clone());
        let task = self.runtime.spawn(async move {
            let called = AssertUnwindSafe(async { function().await }).catch_unwind().await.map_err(drop);
            lock(&shared).known = called.clone().ok();
            sender.send_replace(Some(called));
        });
        let since = Instant::now();
        state.call = Some(Call { since, answer: answer.clone(), task });
        (since, answer)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // No code panics while it holds this lock.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
