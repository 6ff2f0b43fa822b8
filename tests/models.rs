//! What holds a lock, run with every order in which threads can come to it. The files are those of the crate, compiled against `loom` by way of
//! `crate::sync`.
//!
//! Not here: memory that is ordered wrongly behind a pointer, which `loom` does not see and ThreadSanitizer does (`make sanitize`); threads that
//! make the same mapping, which race by `once_cell::race` and hold no lock (`threads.rs` has them race); the lock of
//! which pool of threads there is, which nothing is done under; a real fork (`fork_lock.rs`), which stands here for threads that ask as another process.

#![cfg(not(windows))] // loom ends its coroutines by panics, which abort on their stacks there (x86_64-pc-windows-gnu, under Wine)
#![allow(unsafe_code)] // the crate's files
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use self::fork::ForkMutex;
use self::pool::{HasSize, Pool};
use self::workers::Calls;

mod sync {
    pub(crate) use loom::sync::atomic::AtomicPtr;
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};

    loom::thread_local! {
        /// The process that a thread belongs to.
        pub(crate) static PROCESS: std::cell::Cell<u32> = std::cell::Cell::new(1);
    }

    pub(crate) fn process() -> u32 {
        PROCESS.with(std::cell::Cell::get)
    }

    macro_rules! const_fn {
        ($($function:tt)*) => { $($function)* };
    }
    pub(crate) use const_fn;
}

#[path = "../src/memory/fork.rs"]
#[allow(unreachable_pub)]
mod fork;
#[path = "../src/memory/pool.rs"]
mod pool;
#[path = "../src/workers/pool.rs"]
#[allow(dead_code)] // the threads themselves, which are the model's here
mod workers;

/// Runs `work` on a second thread of a process, and on this one.
fn together(process: u32, work: impl Fn(usize) + Clone + Send + 'static) {
    let other = work.clone();
    let other = thread::spawn(move || {
        sync::PROCESS.with(|own| own.set(process));
        other(1);
    });
    work(0);
    other.join().unwrap();
}

#[test]
fn threads_that_come_first_at_the_same_time_share_one_value() {
    loom::model(|| {
        let mutex = Arc::new(ForkMutex::<usize>::new());
        let shared = mutex.clone();
        together(1, move |_| *shared.lock() += 1);
        assert_eq!(*mutex.lock(), 2);
    });
}

#[test]
fn threads_of_a_child_share_what_the_parent_had() {
    loom::model(|| {
        let mutex = Arc::new(ForkMutex::<usize>::new());
        *mutex.lock() = 7;
        sync::PROCESS.with(|own| own.set(2));
        let shared = mutex.clone();
        together(2, move |_| *shared.lock() += 1);
        assert_eq!(*mutex.lock(), 9);
    });
}

#[test]
fn threads_of_a_child_begin_anew_where_a_thread_of_the_parent_had_the_lock() {
    loom::model(|| {
        let mutex = Arc::new(ForkMutex::<usize>::new());
        let mut held = mutex.lock();
        *held = 7;
        std::mem::forget(held); // its thread is not in the child
        sync::PROCESS.with(|own| own.set(2));
        let shared = mutex.clone();
        together(2, move |_| *shared.lock() += 1);
        assert_eq!(*mutex.lock(), 2);
    });
}

/// A block of a size, which counts its users.
struct Counted {
    size: usize,
    users: Arc<AtomicUsize>,
}

impl HasSize for Counted {
    fn size(&self) -> usize {
        self.size
    }
}

impl Counted {
    fn used(self) -> Self {
        assert_eq!(self.users.fetch_add(1, Ordering::Relaxed), 0, "two users have one block");
        thread::yield_now();
        self.users.fetch_sub(1, Ordering::Relaxed);
        self
    }
}

#[test]
fn a_kept_block_has_one_user_at_a_time_and_no_more_is_kept_than_may_be() {
    const MOST: usize = 10;
    loom::model(|| {
        let pool = Arc::new(Pool::new());
        pool.keep(Counted { size: 6, users: Arc::default() }, MOST);
        let shared = pool.clone();
        together(1, move |thread| {
            let block = shared.take(5).unwrap_or_else(|| Counted { size: 5, users: Arc::default() });
            shared.keep(block.used(), MOST);
            if thread == 0 {
                assert!(shared.trim(0) <= MOST);
            }
        });
        assert!(pool.size() <= MOST && pool.trim(0) <= MOST);
        assert!(pool.take(1).is_none());
    });
}

#[test]
fn a_released_block_is_found_by_whoever_comes_after() {
    loom::model(|| {
        let pool = Arc::new(Pool::new());
        let shared = pool.clone();
        together(1, move |thread| shared.keep(Counted { size: 4 + thread, users: Arc::default() }, 20));
        assert_eq!(pool.take(4).map(|block| block.size), Some(4), "the smaller one");
        assert_eq!(pool.take(2).map(|block| block.size), Some(5));
        assert!(pool.take(2).is_none());
    });
}

/// Runs `call` beside so many threads that help whoever calls, and ends them.
fn with_helpers(helpers: usize, call: impl FnOnce(&Calls)) {
    let calls = Arc::new(Calls::new());
    let answer = || {
        let calls = calls.clone();
        thread::spawn(move || calls.answer())
    };
    let helpers: Vec<_> = (0..helpers).map(|_| answer()).collect();
    call(&calls);
    calls.close();
    for helper in helpers {
        helper.join().unwrap();
    }
}

#[test]
fn who_called_for_help_leaves_after_all_that_came() {
    loom::model(|| {
        with_helpers(1, |calls| {
            let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let work = || {
                begun.fetch_add(1, Ordering::Release);
                done.fetch_add(1, Ordering::Release);
            };
            // The model's clock stands still, so that a helper that leaves without a word would be waited for to the end.
            calls.help(1, &work, |helpers| while !helpers.have_left(Duration::from_secs(1)) {});
            let begun = begun.load(Ordering::Acquire);
            assert!(begun <= 1 && done.load(Ordering::Acquire) == begun);
        });
    });
}

#[test]
fn calls_at_the_same_time_have_no_more_helpers_than_they_called_for_and_each_its_own() {
    loom::model(|| {
        with_helpers(1, |calls| {
            let (outer, inner) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let count = |counter: &AtomicUsize| assert_eq!(counter.fetch_add(1, Ordering::Relaxed), 0);
            calls.help(1, &|| count(&outer), |_| calls.help(1, &|| count(&inner), |_| thread::yield_now()));
        });
    });
}
