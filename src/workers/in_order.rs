//! Threads for one piece of work that mostly waits, as reading files does: made for it, as many as it wants, and gone with it.

use std::sync::mpsc::{RecvTimeoutError, channel};

use super::parts::Parts;
use super::{ASKED_EVERY, Interrupt, now_and_then};
use crate::error::Result;

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
    let parts = Parts::new(jobs);
    let alone = || parts.take(&now_and_then(&|| parts.ask(interrupt)), &work);
    if threads < 2 {
        alone();
        return parts.answer();
    }
    std::thread::scope(|scope| {
        let (sender, ended) = channel::<()>();
        let spawned = (0..threads).filter(|number| {
            let (parts, work, ended) = (&parts, &work, sender.clone());
            let builder = std::thread::Builder::new().name(format!("max_weights-load-{number}"));
            let take = move || {
                let _ended = ended; // dropped, also by a panic
                parts.take(&|| parts.go_on(), work);
            };
            builder.spawn_scoped(scope, take).is_ok()
        });
        if spawned.count() == 0 {
            alone();
        }
        drop(sender);
        // Once at least, however soon all is done.
        loop {
            let is_waiting = ended.recv_timeout(ASKED_EVERY) == Err(RecvTimeoutError::Timeout);
            _ = parts.ask(interrupt);
            if !is_waiting {
                break;
            }
        }
    });
    parts.answer()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::error::Error;
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
