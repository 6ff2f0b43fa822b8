//! Which failed requests are retried, how often, and after which backoff. Their classes are decided in `failure.rs`.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use max_weights::Result;

use crate::failure::{FailureClass, RequestFailure, caught};
use crate::options::RemoteOptions;
use crate::pacing::ServerPacing;

/// The most retries for a server that never answered: its name may be wrong.
const FEW_RETRIES: u32 = 2;
/// The bounds of the backoff before a retry.
const MIN_BACKOFF_SECONDS: f64 = 0.1;
const MAX_BACKOFF_SECONDS: f64 = 10.0;

/// How requests to a server are made.
#[derive(Debug, Clone)]
pub(crate) struct RequestContext {
    pub(crate) pacing: Arc<ServerPacing>,
    pub(crate) options: Arc<RemoteOptions>,
}

/// Retries until it succeeds, or a failure is permanent.
pub(crate) async fn retry<T>(
    context: &RequestContext,
    url: &Path,
    action: &str,
    mut once: impl AsyncFnMut(u32) -> Result<T, RequestFailure>,
) -> Result<T> {
    let mut policy = RetryPolicy::default();
    loop {
        let failure = match caught(once(policy.number)).await {
            Ok(value) => return Ok(value),
            Err(failure) => failure,
        };
        if let Err((failure, tries, time)) = policy.wait(context, failure).await {
            return Err(failure.error(url, action, tries, time));
        }
    }
}

/// The same for a task, whose future may move to another thread. Returns the last failure, the number of tries, and their time.
pub(crate) async fn retry_task<T, F: Future<Output = Result<T, RequestFailure>>>(
    context: &RequestContext,
    mut once: impl FnMut(u32) -> F,
) -> Result<T, (RequestFailure, u32, Duration)> {
    let mut policy = RetryPolicy::default();
    loop {
        match caught(once(policy.number)).await {
            Ok(value) => return Ok(value),
            Err(failure) => policy.wait(context, failure).await?,
        }
    }
}

#[derive(Debug)]
struct RetryPolicy {
    began: Instant,
    /// The current try, from 1 on.
    number: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { began: Instant::now(), number: 1 }
    }
}

impl RetryPolicy {
    /// Waits until the next try after a failure.
    ///
    /// # Errors
    /// The failure is permanent, or the retries are exhausted. It comes with the number of tries and their time.
    async fn wait(
        &mut self,
        context: &RequestContext,
        failure: RequestFailure,
    ) -> Result<(), (RequestFailure, u32, Duration)> {
        let retries = match failure.class {
            FailureClass::Again { wait, slower } => {
                context.pacing.on_throttle(slower, wait);
                context.options.retries
            }
            FailureClass::Unreachable if context.pacing.has_answered() => context.options.retries,
            FailureClass::Unreachable => context.options.retries.min(FEW_RETRIES),
            _ => 0,
        };
        if self.number > retries {
            return Err((failure, self.number, self.began.elapsed()));
        }
        // Jitter, so that retries do not arrive at the same time.
        let most = (MIN_BACKOFF_SECONDS * f64::from(1 << self.number.min(10))).min(MAX_BACKOFF_SECONDS);
        let share = f64::from(self.began.elapsed().subsec_nanos() % 1_000) / 1_000.0;
        tokio::time::sleep(Duration::from_secs_f64(most * (0.5 + share / 2.0))).await;
        self.number += 1;
        Ok(())
    }
}
