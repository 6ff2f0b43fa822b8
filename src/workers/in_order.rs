//! Threads for one piece of work that mostly waits, as reading files does: made for it, as many as it wants, and gone with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};

use super::{ASKED_EVERY, Interrupt, now_and_then};
use crate::error::{Error, Result};

/// Calls `work` for each job, in their order, on so many threads, and waits for all; the first error is the answer, and ends the others. What
/// `work` keeps between two jobs is one `S` on each thread.
///
/// `interrupt` is asked on the calling thread. What `work` gets is for jobs that take long themselves: its error means that the work was
/// interrupted. Where threads cannot be made, the calling thread does the work.
pub fn in_order<T: Send, S: Default>(
    threads: usize,
    jobs: Vec<T>,
    interrupt: Interrupt<'_>,
    work: impl Fn(T, &mut S, Interrupt<'_>) -> Result<()> + Sync,
) -> Result<()> {
    let threads = threads.min(jobs.len());
    let (queue, stop) = (Mutex::new(jobs.into_iter()), AtomicBool::new(false));
    let all = |go_on: Interrupt<'_>| {
        let mut kept = S::default();
        loop {
            let job = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(job) = job else { return Ok(()) };
            let done = go_on().and_then(|()| work(job, &mut kept, go_on));
            if done.is_err() {
                stop.store(true, Ordering::Relaxed);
                return done;
            }
        }
    };
    if threads < 2 {
        interrupt()?; // at least once, however soon all is done
        return all(&now_and_then(interrupt));
    }
    std::thread::scope(|scope| {
        let (sender, answers) = channel();
        let mut running = 0;
        for number in 0..threads {
            let (sender, all, stop) = (sender.clone(), &all, &stop);
            let go_on = move || if stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) };
            let builder = std::thread::Builder::new().name(format!("max_weights-load-{number}"));
            let spawned = builder.spawn_scoped(scope, move || sender.send(all(&go_on)));
            running += usize::from(spawned.is_ok());
        }
        drop(sender);
        if running == 0 {
            return all(&now_and_then(interrupt));
        }
        let (mut failed, mut interrupted) = (None, Ok(()));
        loop {
            match answers.recv_timeout(ASKED_EVERY) {
                // Those that were stopped say so, too: that is not what went wrong.
                Ok(Err(error)) if !matches!(error, Error::Interrupted) => failed = failed.or(Some(error)),
                // All have answered; or one panicked, as this thread will when the scope ends.
                Err(RecvTimeoutError::Disconnected) => break,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            }
            if interrupted.is_ok() {
                interrupted = interrupt();
                stop.fetch_or(interrupted.is_err(), Ordering::Relaxed);
            }
        }
        interrupted.and(failed.map_or(Ok(()), Err))
    })
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
        let failed = in_order(4, (0..1000).collect(), &uninterrupted, |job: usize, (): &mut (), go_on| {
            begun.fetch_add(1, Ordering::Relaxed);
            if job == 7 {
                return Err(Error::Argument("seven".into()));
            }
            std::thread::sleep(Duration::from_millis(1));
            go_on()
        });
        assert_eq!(failed.expect_err("failed").to_string(), "seven");
        assert!(begun.into_inner() < 900);
    }

    #[test]
    fn an_interrupt_ends_jobs_that_are_under_way() {
        let stop = || Err(Error::Argument("stop".into()));
        let endless = |_: usize, (): &mut (), go_on: Interrupt<'_>| {
            loop {
                go_on()?;
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        for threads in [1, 4] {
            let failed = in_order(threads, vec![1, 2, 3], &stop, endless).expect_err("interrupted");
            assert_eq!(failed.to_string(), "stop");
        }
    }
}
