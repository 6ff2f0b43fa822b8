//! The two threads that serve connections, made at the first use, and again in a forked child, which has no threads.

use std::future::Future;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use max_weights::memory::ForkOnce;
use max_weights::source::store;
use max_weights::workers::{Interrupt, POLL_INTERVAL};
use max_weights::{Error, Result};
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads that serve connections; the waiting threads copy the bytes.
const THREADS: usize = 2;

static RUNTIME: ForkOnce<Handle> = ForkOnce::new();

/// Where tasks of this process run.
pub(crate) fn handle() -> Result<Handle> {
    let start = || -> std::io::Result<Handle> {
        let built: Runtime =
            Builder::new_multi_thread().worker_threads(THREADS).thread_name("max-weights-net").enable_all().build()?;
        let handle = built.handle().clone();
        // Its threads live as long as the process: waiting for connections at exit would only take time.
        std::mem::forget(built);
        Ok(handle)
    };
    let failed = |error| Error::Argument(format!("the threads of network connections cannot be started: {error}"));
    RUNTIME.get(|_| true, start).map_err(failed)
}

/// Waits for a future on this thread, and checks now and then for cancellation. Errors name the action and the URL.
///
/// # Errors
/// Those of the future, a cancellation, and a timeout.
pub(crate) fn wait<T>(
    interrupt: Interrupt<'_>,
    timeout: Option<Duration>,
    (action, url): (&str, &Path),
    future: impl Future<Output = Result<T>>,
) -> Result<T> {
    let (began, process) = (Instant::now(), std::process::id());
    let runtime = handle()?;
    // A signal handler, or a credentials function: a thread that waits in the runtime cannot wait for it again.
    if Handle::try_current().is_ok() {
        let cause = "this thread waits for a server already: files of servers cannot be read by a signal handler, or by a function that gives credentials";
        return Err(Error::io(&store::redacted(url), action, io::Error::new(io::ErrorKind::Deadlock, cause)));
    }
    runtime.block_on(async {
        let mut future = std::pin::pin!(future);
        loop {
            match tokio::time::timeout(POLL_INTERVAL, &mut future).await {
                Ok(result) => return result,
                Err(_) => interrupt()?,
            }
            // A signal handler forked, and its child returned here: the serving threads are its parent's.
            if std::process::id() != process {
                return Err(Error::Interrupted);
            }
            if timeout.is_some_and(|timeout| began.elapsed() > timeout) {
                let cause = format!("it exceeded timeout={:.1} s", began.elapsed().as_secs_f64());
                return Err(Error::io(&store::redacted(url), action, io::Error::new(io::ErrorKind::TimedOut, cause)));
            }
        }
    })
}
