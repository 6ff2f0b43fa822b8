//! The two threads on which connections are served, made at the first use, and made anew in a forked child, which has no threads.

use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use max_weights::source::store;
use max_weights::workers::Interrupt;
use max_weights::{Error, Result};
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads that serve connections; the bytes are copied by those who wait for them.
const THREADS: usize = 2;
/// How often a waiting caller asks whether to go on.
const TICK: Duration = Duration::from_millis(25);

/// The runtime of the process with this number.
static RUNTIME: Mutex<Option<(u32, Handle)>> = Mutex::new(None);

/// Where tasks of this process run.
pub(crate) fn handle() -> Result<Handle> {
    let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if let Some((of, handle)) = &*runtime
        && *of == process
    {
        return Ok(handle.clone());
    }
    let built: Runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("max-weights-net")
        .enable_all()
        .build()
        .map_err(|error| Error::Argument(format!("the threads of network connections cannot be started: {error}")))?;
    let handle = built.handle().clone();
    // Its threads live as long as the process: to wait for connections at its end would only take time.
    std::mem::forget(built);
    *runtime = Some((process, handle.clone()));
    Ok(handle)
}

/// Waits for a future on this thread, which does this with that URL, and asks now and then whether to go on.
///
/// # Errors
/// What the future says; that the caller is to stop; that the time is over.
pub(crate) fn wait<T>(
    interrupt: Interrupt<'_>,
    timeout: Option<Duration>,
    (action, url): (&str, &Path),
    future: impl Future<Output = Result<T>>,
) -> Result<T> {
    let began = Instant::now();
    handle()?.block_on(async {
        let mut future = std::pin::pin!(future);
        loop {
            match tokio::time::timeout(TICK, &mut future).await {
                Ok(result) => return result,
                Err(_) => interrupt()?,
            }
            if timeout.is_some_and(|timeout| began.elapsed() > timeout) {
                let cause = format!("it was not done within timeout={:.1} s", began.elapsed().as_secs_f64());
                return Err(Error::io(&store::redacted(url), action, io::Error::new(io::ErrorKind::TimedOut, cause)));
            }
        }
    })
}
