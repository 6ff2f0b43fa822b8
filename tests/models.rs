//! What holds a lock, run with every order in which threads can come to it. The files are those of the crate, compiled against `loom` by way of
//! `crate::sync`.
//!
//! Not here: memory that is ordered wrongly behind a pointer, which `loom` does not see and ThreadSanitizer does (`make sanitize`); threads that
//! make the same mapping, which race by `once_cell::race` and hold no lock (`threads.rs` has them race); the pool of threads, which is only
//! ever tried for and never waited for; a real fork (`fork_lock.rs`), which stands here for threads that ask as another process.

#![cfg(not(windows))] // loom ends its coroutines by panics, which abort on their stacks there (x86_64-pc-windows-gnu, under Wine)
#![allow(unsafe_code)] // the crate's files
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use self::fork::ForkMutex;
use self::pool::{HasSize, Pool};
use self::team::Team;

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
#[path = "../src/workers/team.rs"]
mod team;

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

#[test]
fn who_waits_for_a_team_leaves_after_all_that_joined_it() {
    loom::model(|| {
        let team = Arc::new(Team::new());
        let (joined, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let worker = {
            let (team, joined, done) = (team.clone(), joined.clone(), done.clone());
            thread::spawn(move || {
                let _member = team.join();
                joined.store(1, Ordering::Release);
                team.fail(1);
                team.fail(2); // the first one counts
                done.store(1, Ordering::Release);
            })
        };
        let was_there = joined.load(Ordering::Acquire);
        // The model's clock stands still, so that a thread that leaves without a word would be waited for to the end.
        while !team.wait(Duration::from_secs(1)) {}
        assert!(done.load(Ordering::Acquire) >= was_there);
        worker.join().unwrap();
        assert_eq!(team.take_error(), Some(1));
    });
}
