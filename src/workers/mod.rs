//! Threads of our own for work on large arrays: as many as the process may use, made when first needed, made anew in a forked child.
//!
//! The thread that asks for the work takes part in it, and asks every few milliseconds whether to go on, so that Ctrl-C ends long work at once.

mod in_order;
mod team;

use std::cell::{Cell, RefCell};
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use once_cell::race::OnceBox;
use rayon::{Scope, ThreadPool};

pub use self::in_order::in_order;

use self::team::Team;
use crate::error::{Error, Result};

/// Asked now and then during long work; an error ends it.
pub type Interrupt<'a> = &'a dyn Fn() -> Result<()>;

/// How long work goes on between two questions. Ctrl-C is promised an answer within 100 ms, of which a part of the work takes some.
pub(crate) const ASKED_EVERY: Duration = Duration::from_millis(25);

thread_local! {
    /// What says that the work is to stop that this thread helps with.
    static STOP: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// The question for what takes a function alone: whether the work is to stop that this thread of the pool helps with. The thread that asked for the work
/// asks its own.
pub fn stopped_here() -> Result<()> {
    let stops = STOP.with_borrow(|stop| stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)));
    if stops { Err(Error::Interrupted) } else { Ok(()) }
}

/// Has [`stopped_here`] answer by this, until it is dropped.
struct Helping(Option<Arc<AtomicBool>>);

impl Helping {
    fn with(stop: &Arc<AtomicBool>) -> Self {
        Self(STOP.replace(Some(stop.clone())))
    }
}

impl Drop for Helping {
    fn drop(&mut self) {
        STOP.set(self.0.take());
    }
}

/// The question for work that nobody interrupts.
pub fn uninterrupted() -> Result<()> {
    Ok(())
}

/// `interrupt`, asked at most once in a while however often this is called.
pub fn now_and_then(interrupt: Interrupt<'_>) -> impl Fn() -> Result<()> {
    let asked = Cell::new(Instant::now());
    move || {
        if asked.get().elapsed() < ASKED_EVERY {
            return Ok(());
        }
        asked.set(Instant::now());
        interrupt()
    }
}

/// The most threads that anything uses: more than that gain nothing, and to make thousands takes longer than the work.
const MOST_THREADS: usize = 512;

/// How many threads were asked for; 0 for none.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// How many threads everything uses from now on; none: as many as the process may use.
pub fn set_threads(threads: Option<NonZero<usize>>) {
    THREADS.store(threads.map_or(0, NonZero::get), Ordering::Relaxed);
}

thread_local! {
    /// How many threads the call that runs on this thread may use; none: as everything.
    static LIMIT: Cell<Option<NonZero<usize>>> = const { Cell::new(None) };
}

/// How many threads calls on this thread use from now on, whatever [`set_threads`] says; returns the limit before.
pub fn limit_threads(threads: Option<NonZero<usize>>) -> Option<NonZero<usize>> {
    LIMIT.replace(threads)
}

/// How many threads somebody asked for, up to 512: by [`limit_threads`], [`set_threads`], or by the environment variable `MAX_WEIGHTS_THREADS`.
pub fn asked_threads() -> Option<usize> {
    static VARIABLE: OnceBox<Option<usize>> = OnceBox::new();
    let variable = || Box::new(std::env::var("MAX_WEIGHTS_THREADS").ok().and_then(|text| text.trim().parse().ok()));
    let everywhere = || match THREADS.load(Ordering::Relaxed) {
        0 => *VARIABLE.get_or_init(variable),
        threads => Some(threads),
    };
    let asked = LIMIT.get().map(NonZero::get).or_else(everywhere);
    asked.filter(|threads| *threads > 0).map(|threads| threads.min(MOST_THREADS))
}

/// How many threads work is divided among: those that were asked for, or as many as the process may use.
pub fn threads() -> usize {
    asked_threads().unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// A pool of threads that lives as long as the process, or until another number of threads is asked for.
pub struct Workers {
    pool: Mutex<Option<Pool>>,
    /// The process in which the lock was last free; 0 for none yet.
    process: AtomicU32,
}

/// Threads, and whose they are.
struct Pool {
    /// The process that made them: a forked child has the memory of the pool, but not its threads.
    process: u32,
    threads: usize,
    workers: Arc<ThreadPool>,
}

/// The pool of the process.
pub static WORKERS: Workers = Workers { pool: Mutex::new(None), process: AtomicU32::new(0) };

impl Workers {
    /// Calls `work` once for each part, on several threads at a time, and waits for all; the first error is the answer.
    ///
    /// The calling thread takes part, and `interrupt` is asked on it. What `work` gets is for parts that take long themselves: its error means
    /// that the work was interrupted.
    pub fn each<T: Send>(
        &self,
        parts: Vec<T>,
        interrupt: Interrupt<'_>,
        work: impl Fn(T, Interrupt<'_>) -> Result<()> + Sync + Send,
    ) -> Result<()> {
        if parts.len() > 1
            && let Some(pool) = self.pool()
        {
            return on_pool(&pool, parts, interrupt, work);
        }
        let interrupt = now_and_then(interrupt);
        parts.into_iter().try_for_each(|part| {
            interrupt()?;
            work(part, &interrupt)
        })
    }

    /// The lock of the pool, for which another thread of this process is waited. None in a child that was forked while a thread of its parent
    /// held it: nobody is there to give it back, and nothing but speed is lost by doing without.
    fn lock(&self, process: u32) -> Option<MutexGuard<'_, Option<Pool>>> {
        let first = self.process.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed);
        let is_inherited = first.is_err_and(|before| before != process);
        let lock = match self.pool.try_lock() {
            Err(TryLockError::WouldBlock) if is_inherited => return None,
            Err(TryLockError::WouldBlock) => self.pool.lock().unwrap_or_else(PoisonError::into_inner),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Ok(lock) => lock,
        };
        self.process.store(process, Ordering::Relaxed);
        Some(lock)
    }

    /// The pool; `None` where threads cannot be made, and then the caller's own thread does the work.
    fn pool(&self) -> Option<Arc<ThreadPool>> {
        // Before the lock: to ask the system takes long.
        let (process, threads) = (std::process::id(), threads());
        let mut current = self.lock(process)?;
        match current.take() {
            Some(found) if found.process == process && found.threads == threads => {
                let pool = found.workers.clone();
                *current = Some(found);
                return Some(pool);
            }
            // The threads of the parent are not here, so nothing may wait for them.
            Some(parents) if parents.process != process => std::mem::forget(parents),
            // Work that is under way has the pool, too, and ends it.
            Some(_) | None => {}
        }
        let builder = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("max_weights-{i}"));
        let pool = Arc::new(builder.build().ok()?);
        *current = Some(Pool { process, threads, workers: pool.clone() });
        Some(pool)
    }
}

fn on_pool<T: Send>(
    pool: &ThreadPool,
    parts: Vec<T>,
    interrupt: Interrupt<'_>,
    work: impl Fn(T, Interrupt<'_>) -> Result<()> + Sync + Send,
) -> Result<()> {
    let helpers = pool.current_num_threads().min(parts.len()) - 1;
    let (queue, stop, team) = (Mutex::new(parts.into_iter()), Arc::new(AtomicBool::new(false)), Team::new());
    let stopped = || if stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) };
    let take_part = |go_on: Interrupt<'_>| {
        let _member = team.join();
        loop {
            let part = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(part) = part else { break };
            if let Err(error) = go_on().and_then(|()| work(part, go_on)) {
                team.fail(error);
                stop.store(true, Ordering::Relaxed);
                break;
            }
        }
    };
    let help = || {
        let _helping = Helping::with(&stop);
        take_part(&stopped);
    };
    let interrupted = pool.in_place_scope(|scope| {
        spawn(scope, helpers, &help);
        let interrupted = Cell::new(None);
        let asked = || {
            interrupt().map_err(|error| {
                interrupted.set(Some(error));
                stop.store(true, Ordering::Relaxed);
                Error::Interrupted
            })
        };
        let ask = now_and_then(&asked);
        let go_on = || stopped().and_then(|()| ask());
        take_part(&go_on);
        // Those that have not come yet find nothing to do.
        while !team.wait(ASKED_EVERY) {
            _ = go_on();
        }
        interrupted.take()
    });
    interrupted.or_else(|| team.take_error()).map_or(Ok(()), Err)
}

/// Calls `help` on so many threads of the pool. Each wakes two others, so that many do not wait for one that wakes them one after the other.
fn spawn<'scope>(scope: &Scope<'scope>, helpers: usize, help: &'scope (dyn Fn() + Sync)) {
    for helpers in [helpers.div_ceil(2), helpers / 2].into_iter().filter(|helpers| *helpers > 0) {
        scope.spawn(move |scope| {
            spawn(scope, helpers - 1, help);
            help();
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::thread;

    use super::*;

    #[test]
    fn every_part_is_done_once_and_the_first_error_is_the_answer() {
        let sum = AtomicUsize::new(0);
        let done = WORKERS.each((0..100).collect(), &uninterrupted, |part, _| {
            sum.fetch_add(part, Ordering::Relaxed);
            Ok(())
        });
        assert!(done.is_ok());
        assert_eq!(sum.into_inner(), 4950);
        let two = |part, _: Interrupt<'_>| if part == 2 { Err(Error::Argument("two".into())) } else { Ok(()) };
        let failed = WORKERS.each(vec![1, 2, 3], &uninterrupted, two);
        assert_eq!(failed.expect_err("failed").to_string(), "two");
    }

    #[test]
    fn an_interrupt_ends_parts_that_are_under_way_and_those_to_come() {
        let begun = AtomicUsize::new(0);
        let endless = |_: usize, go_on: Interrupt<'_>| {
            begun.fetch_add(1, Ordering::Relaxed);
            loop {
                go_on()?;
                thread::yield_now();
            }
        };
        for parts in [1, 1000] {
            begun.store(0, Ordering::Relaxed);
            let asked = Cell::new(0);
            let interrupt = || {
                asked.set(asked.get() + 1);
                if asked.get() < 3 { Ok(()) } else { Err(Error::Argument("stop".into())) }
            };
            let failed = WORKERS.each((0..parts).collect(), &interrupt, endless).expect_err("interrupted");
            assert_eq!(failed.to_string(), "stop");
            assert!(begun.load(Ordering::Relaxed) <= parts.min(999), "the parts to come were not begun");
        }
    }

    #[test]
    fn the_thread_that_calls_takes_part() {
        let (caller, came) = (thread::current().id(), Mutex::new(HashSet::new()));
        let done = WORKERS.each((0..threads() * 2).collect(), &uninterrupted, |_: usize, go_on| {
            let here = || came.lock().unwrap_or_else(PoisonError::into_inner);
            here().insert(thread::current().id());
            // The others stay until it has come, as they could do all parts before.
            while !here().contains(&caller) {
                go_on()?;
                thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        });
        assert!(done.is_ok());
    }

    #[test]
    fn several_that_come_at_once_all_have_the_threads() {
        assert!(WORKERS.pool().is_some());
        let come = std::sync::Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        come.wait();
                        assert!(WORKERS.pool().is_some());
                    }
                });
            }
        });
    }

    #[test]
    fn parts_that_have_parts_themselves_do_not_wait_for_each_other() {
        let sum = AtomicUsize::new(0);
        let done = WORKERS.each((0..8).collect(), &uninterrupted, |outer: usize, go_on| {
            WORKERS.each((0..8).collect(), go_on, |inner: usize, _| {
                sum.fetch_add(outer * inner, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
                Ok(())
            })
        });
        assert!(done.is_ok());
        assert_eq!(sum.into_inner(), 28 * 28);
    }

    #[test]
    fn work_that_panics_on_a_worker_panics_where_it_was_asked_for_and_the_pool_goes_on() {
        let panics = |part: i32, _: Interrupt<'_>| {
            assert!(part != 2, "two");
            Ok(())
        };
        let caught = std::panic::catch_unwind(|| WORKERS.each(vec![1, 2, 3], &uninterrupted, panics));
        assert!(caught.is_err());
        assert!(WORKERS.each(vec![1, 3], &uninterrupted, panics).is_ok());
    }
}
