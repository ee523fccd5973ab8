//! Forbidden flags: which jobs a worker leaves alone for now.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::{Error, Result};

/// Jobs with one of these flags are left alone. Asked before every claim, so it can change while the worker runs.
#[derive(Clone, Default)]
pub struct ForbiddenFlags {
    source: Source,
}

#[derive(Clone, Default)]
enum Source {
    #[default]
    None,
    List(Vec<String>),
    Function(Arc<dyn Fn() -> BoxFuture<'static, Vec<String>> + Send + Sync>),
}

impl ForbiddenFlags {
    /// Always these.
    pub fn list(flags: impl IntoIterator<Item = impl Into<String>>) -> ForbiddenFlags {
        ForbiddenFlags { source: Source::List(flags.into_iter().map(Into::into).collect()) }
    }

    /// What the function says each time. It should be quick.
    pub fn function(function: impl Fn() -> Vec<String> + Send + Sync + 'static) -> ForbiddenFlags {
        ForbiddenFlags::async_function(move || std::future::ready(function()))
    }

    /// What the async function says each time. It should be quick: claiming waits for it.
    pub fn async_function<F>(function: impl Fn() -> F + Send + Sync + 'static) -> ForbiddenFlags
    where
        F: Future<Output = Vec<String>> + Send + 'static,
    {
        ForbiddenFlags { source: Source::Function(Arc::new(move || function().boxed())) }
    }

    pub(crate) fn push(&mut self, flag: String) {
        match &mut self.source {
            Source::List(flags) => flags.push(flag),
            source => *source = Source::List(vec![flag]),
        }
    }

    /// Nothing may be claimed while the function panics: nobody knows what it would have forbidden.
    pub(crate) async fn now(&self) -> Result<Vec<String>> {
        let mut flags = match &self.source {
            Source::None => Vec::new(),
            Source::List(flags) => flags.clone(),
            Source::Function(function) => {
                let asked = AssertUnwindSafe(async { function().await }).catch_unwind().await;
                asked.map_err(|_| Error::unavailable("the function for forbidden flags panicked"))?
            }
        };
        // No job has such a flag, and PostgreSQL would refuse the whole list.
        flags.retain(|flag| !flag.contains('\0'));
        Ok(flags)
    }
}

impl fmt::Debug for ForbiddenFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::None => f.write_str("none"),
            Source::List(flags) => write!(f, "{flags:?}"),
            Source::Function(_) => f.write_str("a function"),
        }
    }
}
