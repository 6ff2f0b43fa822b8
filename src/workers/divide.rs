//! Work that is divided among threads: each takes the next job, until none is left or an error occurs.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::{Helping, Interrupt, LIMIT, POLL_INTERVAL, WORKERS, Workers, lane, limit_threads, now_and_then, threads};
use crate::error::{Error, Result};
use crate::sync::{ForkOnce, ThreadLane};

impl Workers {
    /// Calls `work` once for each part, on several threads, and waits for all of them; returns the first error.
    ///
    /// The calling thread takes part, and checks `interrupt`. The check that `work` gets is for parts that take long themselves: its error means
    /// that the work was interrupted.
    pub fn each<T: Send>(
        &self,
        parts: Vec<T>,
        interrupt: Interrupt<'_>,
        work: impl Fn(T, Interrupt<'_>) -> Result<()> + Sync,
    ) -> Result<()> {
        let most = if parts.len() > 1 { threads() } else { 1 };
        let helpers = most.min(parts.len()).saturating_sub(1);
        let work = |part, (): &mut (), cancel: Interrupt<'_>| work(part, cancel);
        divide((&self.busy, helpers, most), true, parts, interrupt, work)
    }
}

/// Calls `work` for each job, in order, on up to `threads` threads that mostly wait for I/O, and waits for all of them. The first error is returned,
/// and ends the others. Each thread has one `S`, which `work` keeps between its jobs.
///
/// The calling thread only checks `interrupt`. The check that `work` gets is for jobs that take long themselves: its error means that the work was
/// interrupted. If threads cannot be made, the calling thread does the work.
pub fn in_order<T: Send, S: Default>(
    threads: usize,
    jobs: Vec<T>,
    interrupt: Interrupt<'_>,
    work: impl Fn(T, &mut S, Interrupt<'_>) -> Result<()> + Sync,
) -> Result<()> {
    interrupt()?; // at least once, however soon all is done
    let threads = threads.min(jobs.len());
    let helpers = if threads < 2 { 0 } else { threads };
    divide((&WORKERS.waiting, helpers, usize::MAX), false, jobs, interrupt, work)
}

/// Does jobs on up to `helpers` threads of a lane with at most `most` threads. This thread joins if `takes_part`, or if there are no helpers.
fn divide<T: Send, S: Default>(
    (threads, helpers, most): (&ForkOnce<ThreadLane>, usize, usize),
    takes_part: bool,
    jobs: Vec<T>,
    interrupt: Interrupt<'_>,
    work: impl Fn(T, &mut S, Interrupt<'_>) -> Result<()> + Sync,
) -> Result<()> {
    let (queue, stop) = (Mutex::new(jobs.into_iter()), Arc::new(AtomicBool::new(false)));
    let failed: Mutex<Option<thread::Result<Error>>> = Mutex::new(None);
    let take_part = |cancel: Interrupt<'_>| {
        let all = || -> Result<()> {
            let mut kept = S::default();
            loop {
                let job = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(job) = job else { return Ok(()) };
                cancel().and_then(|()| work(job, &mut kept, cancel))?;
            }
        };
        let why = match catch_unwind(AssertUnwindSafe(all)) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => Ok(error),
            Err(panic) => Err(panic),
        };
        // Recorded before the others are stopped, whose errors are not the cause.
        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        stop.store(true, Ordering::Relaxed);
    };
    let mut interrupted = None;
    if helpers == 0 {
        take_part(&now_and_then(interrupt));
    } else {
        let stopped = || if stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) };
        let limit = LIMIT.get();
        let help = || {
            limit_threads(limit);
            let _helping = Helping::with(&stop);
            take_part(&stopped);
        };
        interrupted = lane(threads).call(&help, helpers, most, |helpers| {
            let interrupted = Cell::new(None);
            let requested = || {
                let here = || if helpers.are_here() { Ok(()) } else { Err(Error::Interrupted) };
                interrupt().and_then(|()| here()).map_err(|error| {
                    interrupted.set(Some(error));
                    stop.store(true, Ordering::Relaxed);
                    Error::Interrupted
                })
            };
            let ask = now_and_then(&requested);
            let cancel = || stopped().and_then(|()| ask());
            if takes_part || helpers.ready == 0 {
                take_part(&cancel);
                helpers.dismiss();
            }
            while !helpers.wait(POLL_INTERVAL) {
                _ = cancel();
            }
            interrupted.take()
        });
    }
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        _ if interrupted.is_some() => interrupted.map_or(Ok(()), Err),
        Some(Err(panic)) => resume_unwind(panic),
        Some(Ok(error)) => Err(error),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;
    use crate::workers::uninterrupted;

    #[test]
    fn every_job_is_done_once_and_begun_in_order() {
        for threads in [1, 3, 100] {
            let begun = Mutex::new(Vec::new());
            let done = in_order(threads, (0..50).collect(), &uninterrupted, |job: usize, (): &mut (), _| {
                begun.lock().expect("no panic").push(job);
                Ok(())
            });
            assert!(done.is_ok());
            let mut begun = begun.into_inner().expect("no panic");
            begun.sort_unstable();
            assert_eq!(begun, (0..50).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_error_is_the_answer_and_ends_the_others() {
        let begun = AtomicUsize::new(0);
        let failed = in_order(4, (0..1000).collect(), &uninterrupted, |job: usize, (): &mut (), cancel| {
            begun.fetch_add(1, Ordering::Relaxed);
            if job == 7 {
                return Err(Error::Argument("seven".into()));
            }
            std::thread::sleep(Duration::from_millis(1));
            cancel()
        });
        assert_eq!(failed.expect_err("failed").to_string(), "seven");
        assert!(begun.into_inner() < 900);
    }

    #[test]
    fn an_interrupt_ends_jobs_that_are_under_way() {
        let stop = || Err(Error::Argument("stop".into()));
        let endless = |_: usize, (): &mut (), cancel: Interrupt<'_>| {
            loop {
                cancel()?;
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        for threads in [1, 4] {
            let failed = in_order(threads, vec![1, 2, 3], &stop, endless).expect_err("interrupted");
            assert_eq!(failed.to_string(), "stop");
        }
    }
}
