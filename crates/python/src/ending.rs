//! The end of Python, for threads that are working then, and forks of Python, for idle threads.
//!
//! Before 3.14, Python ends a thread that requests the GIL too late by unwinding its stack, and if that meets Rust, the process aborts. So when
//! Python is about to end, threads that are returning get the GIL. Those that come later wait for the end of the process, as all of them do in
//! Python 3.14.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::thread::{self, ThreadId};
use std::time::Duration;

use max_weights::simd::with_default_environment;
use max_weights::workers::WORKERS;
use pyo3::prelude::*;

/// The thread that ends Python, once it is about to.
static ENDING: OnceLock<ThreadId> = OnceLock::new();
/// Threads that are returning. In a forked child the count is too high if other threads were returning at the fork.
static RETURNING: AtomicUsize = AtomicUsize::new(0);
/// How long Python's end waits for them, a millisecond at a time.
const PATIENCE: usize = 200;

/// Does `work` without the GIL, and in the floating-point environment that it expects.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl Send + FnOnce() -> T) -> T {
    let done = py.detach(|| {
        let done = with_default_environment(work);
        set_out();
        done
    });
    arrive();
    done
}

/// Does `work` with the GIL, on a thread that has released it; `None` if Python has ended.
pub(crate) fn reattached<T>(work: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    set_out();
    Python::try_attach(|py| {
        arrive();
        work(py)
    })
    .or_else(|| {
        arrive();
        None
    })
}

fn set_out() {
    RETURNING.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst); // either this thread sees that Python ends, or its end sees this thread
    if ENDING.get().is_some_and(|ending| *ending != thread::current().id()) {
        arrive();
        loop {
            thread::park();
        }
    }
}

fn arrive() {
    RETURNING.fetch_sub(1, Ordering::SeqCst);
}

#[pyfunction]
fn let_through(py: Python<'_>) {
    let _ = ENDING.set(thread::current().id());
    fence(Ordering::SeqCst);
    for _ in 0..PATIENCE {
        if RETURNING.load(Ordering::SeqCst) == 0 {
            break;
        }
        py.detach(|| thread::sleep(Duration::from_millis(1)));
    }
}

#[pyfunction]
fn end_idle_threads(py: Python<'_>) {
    py.detach(|| WORKERS.end_idle());
}

/// Has Python call these when it is about to end, and to fork: it warns of threads that a child does not have.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let let_through = pyo3::wrap_pyfunction!(let_through, module)?;
    module.py().import("atexit")?.call_method1("register", (let_through,))?;
    #[cfg(unix)]
    {
        let before = pyo3::types::PyDict::new(module.py());
        before.set_item("before", pyo3::wrap_pyfunction!(end_idle_threads, module)?)?;
        module.py().import("os")?.call_method("register_at_fork", (), Some(&before))?;
    }
    Ok(())
}
