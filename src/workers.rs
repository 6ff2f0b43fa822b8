//! Threads of our own for work on large arrays: as many as the process may use, made when first needed, made anew in a forked child.

use std::sync::{Arc, Mutex, TryLockError};

use rayon::ThreadPool;
use rayon::iter::{IntoParallelIterator as _, ParallelIterator as _};

use crate::error::Result;

/// A pool of threads that lives as long as the process.
pub struct Workers {
    /// The process that made the threads: a forked child has the memory of the pool, but not its threads.
    pool: Mutex<Option<(u32, Arc<ThreadPool>)>>,
}

/// The pool of the process.
pub static WORKERS: Workers = Workers { pool: Mutex::new(None) };

impl Workers {
    /// Calls `work` once for each part, on several threads at a time, and waits for all; the first error is the answer.
    pub fn each<T: Send>(&self, parts: Vec<T>, work: impl Fn(T) -> Result<()> + Sync + Send) -> Result<()> {
        if parts.len() > 1
            && let Some(pool) = self.pool()
        {
            return pool.install(|| parts.into_par_iter().try_for_each(work));
        }
        parts.into_iter().try_for_each(work)
    }

    /// How many threads there are.
    pub fn count(&self) -> usize {
        self.pool().map_or(1, |pool| pool.current_num_threads())
    }

    /// The pool; none where threads cannot be made, and then the caller's own thread does the work.
    fn pool(&self) -> Option<Arc<ThreadPool>> {
        let mut current = match self.pool.try_lock() {
            Ok(current) => current,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Held for a moment by another thread; or for ever, in a child forked at that moment. Nothing is lost by doing without.
            Err(TryLockError::WouldBlock) => return None,
        };
        let process = std::process::id();
        match current.take() {
            Some((owner, pool)) if owner == process => {
                *current = Some((owner, pool.clone()));
                return Some(pool);
            }
            // The threads of the parent are not here, so nothing may wait for them.
            Some((_, parents)) => std::mem::forget(parents),
            None => {}
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let builder = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("max_weights-{i}"));
        let pool = Arc::new(builder.build().ok()?);
        *current = Some((process, pool.clone()));
        Some(pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_part_is_done_once_and_the_first_error_is_the_answer() {
        let sum = AtomicUsize::new(0);
        let done = WORKERS.each((0..100).collect(), |part| {
            sum.fetch_add(part, Ordering::Relaxed);
            Ok(())
        });
        assert!(done.is_ok());
        assert_eq!(sum.into_inner(), 4950);
        let failed =
            WORKERS.each(vec![1, 2, 3], |part| if part == 2 { Err(Error::Argument("two".into())) } else { Ok(()) });
        assert_eq!(failed.expect_err("failed").to_string(), "two");
        assert!(WORKERS.count() >= 1);
    }
}
