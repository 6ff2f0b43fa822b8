//! The threads of this crate: those for work on large arrays, at most as many as the process may use, and those that mostly wait for I/O, as many as
//! a call wants. They are made when first needed, and made again in a forked child.
//!
//! The calling thread checks for cancellation every few milliseconds, so that Ctrl-C ends long work at once.

mod divide;

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use once_cell::race::OnceBox;

pub use self::divide::in_order;

use crate::error::{Error, Result};
use crate::sync::{ForkOnce, ThreadLane};

/// A check for cancellation, called now and then during long work; an error ends it.
pub type Interrupt<'a> = &'a dyn Fn() -> Result<()>;

/// How long work, or a wait, continues between two checks for cancellation. Ctrl-C is answered within 100 ms, and a unit of work takes part of that.
pub const POLL_INTERVAL: Duration = Duration::from_millis(25);

thread_local! {
    /// Set if the work that this thread helps with must stop.
    static STOP: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// The check for functions that take a plain function: whether the work that this pool thread helps with must stop. The thread that requested the
/// work has its own check.
pub fn stopped_here() -> Result<()> {
    let stops = STOP.with_borrow(|stop| stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)));
    if stops { Err(Error::Interrupted) } else { Ok(()) }
}

/// Makes [`stopped_here`] use this flag, until it is dropped.
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

/// The check for work that cannot be interrupted.
pub fn uninterrupted() -> Result<()> {
    Ok(())
}

/// `interrupt`, limited to one check per interval.
pub fn now_and_then(interrupt: Interrupt<'_>) -> impl Fn() -> Result<()> {
    let requested = Cell::new(Instant::now());
    move || {
        if requested.get().elapsed() < POLL_INTERVAL {
            return Ok(());
        }
        requested.set(Instant::now());
        interrupt()
    }
}

/// The most threads of any call: more gain nothing, and making thousands takes longer than the work.
const MAX_THREADS: usize = 512;

/// The configured number of threads; 0 for none.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Sets the number of threads from now on; none: as many as the process may use.
pub fn set_threads(threads: Option<NonZero<usize>>) {
    THREADS.store(threads.map_or(0, NonZero::get), Ordering::Relaxed);
}

thread_local! {
    /// The limit for the call that runs on this thread; none: the default.
    static LIMIT: Cell<Option<NonZero<usize>>> = const { Cell::new(None) };
}

/// Limits the threads of calls on this thread from now on, whatever [`set_threads`] says; returns the previous limit.
pub fn limit_threads(threads: Option<NonZero<usize>>) -> Option<NonZero<usize>> {
    LIMIT.replace(threads)
}

/// The requested number of threads, up to 512: by [`limit_threads`], [`set_threads`], or the environment variable `MAX_WEIGHTS_THREADS`.
pub fn requested_threads() -> Option<usize> {
    static VARIABLE: OnceBox<Option<usize>> = OnceBox::new();
    let variable = || Box::new(std::env::var("MAX_WEIGHTS_THREADS").ok().and_then(|text| text.trim().parse().ok()));
    let everywhere = || match THREADS.load(Ordering::Relaxed) {
        0 => *VARIABLE.get_or_init(variable),
        threads => Some(threads),
    };
    let requested = LIMIT.get().map(NonZero::get).or_else(everywhere);
    requested.filter(|threads| *threads > 0).map(|threads| threads.min(MAX_THREADS))
}

/// The number of threads that work is divided among: as configured, or as many as the process may use.
pub fn threads() -> usize {
    requested_threads().unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// The threads of a process; a forked child makes new ones.
pub struct Workers {
    /// For work on large arrays: as many as are configured, for all callers together.
    busy: ForkOnce<ThreadLane>,
    /// For work that mostly waits for I/O: as many as each call wants.
    waiting: ForkOnce<ThreadLane>,
}

/// The threads of this process.
pub static WORKERS: Workers = Workers { busy: ForkOnce::new(), waiting: ForkOnce::new() };

impl Workers {
    /// Ends the threads without work. For a fork: a child has none of its parent's threads, and Python warns of running ones.
    pub fn end_idle(&self) {
        lane(&self.busy).end_idle();
        lane(&self.waiting).end_idle();
    }
}

fn lane(lane: &ForkOnce<ThreadLane>) -> ThreadLane {
    let Ok(lane) = lane.get(|_| true, || Ok::<_, Infallible>(ThreadLane::new()));
    lane
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::{Mutex, PoisonError};
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
        let endless = |_: usize, cancel: Interrupt<'_>| {
            begun.fetch_add(1, Ordering::Relaxed);
            loop {
                cancel()?;
                thread::yield_now();
            }
        };
        for parts in [1, 1000] {
            begun.store(0, Ordering::Relaxed);
            let requested = Cell::new(0);
            let interrupt = || {
                requested.set(requested.get() + 1);
                if requested.get() < 3 { Ok(()) } else { Err(Error::Argument("stop".into())) }
            };
            let failed = WORKERS.each((0..parts).collect(), &interrupt, endless).expect_err("interrupted");
            assert_eq!(failed.to_string(), "stop");
            assert!(begun.load(Ordering::Relaxed) <= parts.min(999), "the parts to come were not begun");
        }
    }

    #[test]
    fn the_thread_that_calls_takes_part() {
        let (caller, came) = (thread::current().id(), Mutex::new(HashSet::new()));
        let done = WORKERS.each((0..threads() * 2).collect(), &uninterrupted, |_: usize, cancel| {
            let here = || came.lock().unwrap_or_else(PoisonError::into_inner);
            here().insert(thread::current().id());
            // The others stay until it has come, as they could do all parts before.
            while !here().contains(&caller) {
                cancel()?;
                thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        });
        assert!(done.is_ok());
    }

    #[test]
    fn parts_that_have_parts_themselves_do_not_wait_for_each_other() {
        let sum = AtomicUsize::new(0);
        let done = WORKERS.each((0..8).collect(), &uninterrupted, |outer: usize, cancel| {
            WORKERS.each((0..8).collect(), cancel, |inner: usize, _| {
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

    #[test]
    fn work_that_panics_panics_where_it_was_asked_for_and_ends_the_other_work() {
        let begun = AtomicUsize::new(0);
        let panics = |job: usize, (): &mut (), cancel: Interrupt<'_>| {
            begun.fetch_add(1, Ordering::Relaxed);
            assert!(job != 3, "three");
            thread::sleep(Duration::from_millis(1));
            cancel()
        };
        let all = || in_order(4, (0..1000).collect(), &uninterrupted, panics);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(all)).expect_err("a panic");
        assert_eq!(caught.downcast_ref::<&str>(), Some(&"three"));
        assert!(begun.into_inner() < 900);
        assert!(in_order(4, vec![1, 2], &uninterrupted, |_, (): &mut (), _| Ok(())).is_ok());
    }

    #[test]
    fn those_who_help_have_the_limit_of_the_caller() {
        let before = limit_threads(NonZero::new(3));
        let wrong = AtomicUsize::new(0);
        let look = |_: usize, (): &mut (), _: Interrupt<'_>| {
            wrong.fetch_add(usize::from(threads() != 3), Ordering::Relaxed);
            Ok(())
        };
        assert!(in_order(2, vec![1, 2, 3], &uninterrupted, look).is_ok());
        limit_threads(before);
        assert_eq!(wrong.into_inner(), 0);
    }
}
