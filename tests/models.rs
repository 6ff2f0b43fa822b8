//! Locks, run with every order in which threads can reach them. The files are those of the crate, compiled against `loom` through `crate::sync`.
//!
//! Three things are not here. `loom` does not see wrong memory order behind a pointer; ThreadSanitizer does (`make sanitize`). Threads that make
//! the same mapping race through `once_cell::race` and hold no lock; `threads.rs` covers them. A real fork is in `fork_lock.rs`; here threads
//! act as another process.

#![cfg(not(windows))] // loom ends its coroutines by panics, which abort on their stacks there (x86_64-pc-windows-gnu, under Wine)
#![allow(unsafe_code)] // the crate's files
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use self::fork::ForkMutex;
use self::lane::{Helpers, ThreadLane};
use self::limiter::ConcurrencyLimiter;
use self::pool::{HasSize, Pool};

mod sync {
    use std::collections::VecDeque;
    use std::future::{Future, poll_fn};
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};
    use std::time::{Duration, Instant};

    use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    pub(crate) use super::fork::ForkMutex;
    pub(crate) use loom::sync::atomic::AtomicPtr;
    pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};

    loom::lazy_static! {
        /// Whether threads can be started.
        pub(crate) static ref SPAWNS: AtomicBool = AtomicBool::new(true);
        /// The time, in seconds since the model began.
        static ref CLOCK: (Instant, AtomicUsize) = (Instant::now(), AtomicUsize::new(0));
    }

    pub(crate) fn now() -> Instant {
        CLOCK.0 + Duration::from_secs(CLOCK.1.load(Ordering::SeqCst) as u64)
    }

    /// Is over when it is asked again, and so is any other wait.
    pub(crate) async fn sleep(_: Duration) {
        let mut requested = false;
        poll_fn(|context| {
            if std::mem::replace(&mut requested, true) {
                CLOCK.1.store(1000, Ordering::SeqCst);
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Tokio's semantics: the thread that has waited longest is notified, or else the next one that comes.
    #[derive(Debug)]
    pub(crate) struct Notify(Mutex<Waiting>);

    #[derive(Debug, Default)]
    struct Waiting {
        is_reported: bool,
        number: usize,
        queue: VecDeque<(usize, Option<Waker>)>,
        message: Vec<usize>,
    }

    /// The number of who waits; none before and after.
    pub(crate) struct Notified<'a>(&'a Notify, Option<usize>);

    impl Notify {
        pub(crate) fn new() -> Self {
            Self(Mutex::default())
        }

        pub(crate) fn notify_one(&self) {
            let mut state = self.0.lock().unwrap();
            let Some((number, waker)) = state.queue.pop_front() else {
                state.is_reported = true;
                return;
            };
            state.message.push(number);
            drop(state);
            waker.into_iter().for_each(Waker::wake);
        }

        pub(crate) fn notified(&self) -> Notified<'_> {
            Notified(self, None)
        }
    }

    impl Notified<'_> {
        pub(crate) fn enable(mut self: Pin<&mut Self>) -> bool {
            if self.1.is_none() {
                let mut state = self.0.0.lock().unwrap();
                state.number += 1;
                let number = state.number;
                if std::mem::take(&mut state.is_reported) {
                    state.message.push(number);
                } else {
                    state.queue.push_back((number, None));
                }
                drop(state);
                self.1 = Some(number);
            }
            false
        }
    }

    impl Future for Notified<'_> {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
            self.as_mut().enable();
            let mut state = self.0.0.lock().unwrap();
            let own = self.1.unwrap();
            if let Some(at) = state.message.iter().position(|number| *number == own) {
                state.message.swap_remove(at);
                drop(state);
                self.1 = None;
                return Poll::Ready(());
            }
            if let Some(waiting) = state.queue.iter_mut().find(|(number, _)| *number == own) {
                waiting.1 = Some(context.waker().clone());
            }
            Poll::Pending
        }
    }

    impl Drop for Notified<'_> {
        fn drop(&mut self) {
            let Some(own) = self.1 else { return };
            let mut state = self.0.0.lock().unwrap();
            let was_told = state.message.contains(&own);
            state.message.retain(|number| *number != own);
            state.queue.retain(|(number, _)| *number != own);
            drop(state);
            if was_told {
                self.0.notify_one();
            }
        }
    }

    pub(crate) fn spawn(_: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        if !SPAWNS.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        loom::thread::spawn(work);
        Ok(())
    }

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

#[path = "../src/sync/fork.rs"]
#[allow(unreachable_pub)]
mod fork;
#[path = "../src/sync/lane.rs"]
mod lane;
#[path = "../crates/remote/src/limiter.rs"]
mod limiter;
#[path = "../src/memory/pool.rs"]
mod pool;

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
    const MAX: usize = 10;
    loom::model(|| {
        let pool = Arc::new(Pool::new());
        pool.keep(Counted { size: 6, users: Arc::default() }, MAX);
        let shared = pool.clone();
        together(1, move |thread| {
            let block = shared.take(5).unwrap_or_else(|| Counted { size: 5, users: Arc::default() });
            shared.keep(block.used(), MAX);
            if thread == 0 {
                assert!(shared.trim(0) <= MAX);
            }
        });
        assert!(pool.size() <= MAX && pool.trim(0) <= MAX);
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

/// A model of threads at four locks. loom tries a bounded number of preemptions of runnable threads.
fn threads_of_a_lane(model: impl Fn(&ThreadLane) + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let lane = ThreadLane::new();
        model(&lane);
        lane.end_idle(); // the clock stands still, by which they would end
    });
}

/// How long a model waits between two checks. Its clock stands still, so a waiter that is never notified waits forever, which loom detects.
const TICK: Duration = Duration::from_secs(1);

/// Calls the lane for `helpers` helpers, waits for them, and runs `meanwhile`; no helper works before or after. Returns how many came.
fn called(lane: &ThreadLane, helpers: usize, most: usize, meanwhile: impl FnOnce(&Helpers<'_>)) -> usize {
    let (inside, came, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        inside.fetch_add(1, Ordering::SeqCst);
        came.fetch_add(1, Ordering::SeqCst);
        assert_eq!(over.load(Ordering::SeqCst), 0, "the call is over");
        inside.fetch_sub(1, Ordering::SeqCst);
    };
    lane.call(&work, helpers, most, meanwhile);
    over.store(1, Ordering::SeqCst);
    assert_eq!(inside.load(Ordering::SeqCst), 0, "none works when the call is over");
    came.load(Ordering::SeqCst)
}

fn dismiss(helpers: &Helpers<'_>) {
    helpers.dismiss();
}

/// Waits for helpers as who does nothing else.
fn wait(helpers: &Helpers<'_>) {
    while !helpers.wait(TICK) {}
}

#[test]
fn a_call_is_over_when_those_have_ended_who_came_to_help() {
    threads_of_a_lane(|lane| {
        assert!(called(lane, 2, 2, dismiss) <= 2);
        assert!(called(lane, 2, 2, wait) >= 1, "nobody sent them away");
    });
}

#[test]
fn two_who_wait_for_helpers_at_the_same_time_both_get_one() {
    threads_of_a_lane(|lane| {
        called(lane, 1, usize::MAX, wait); // whose thread one of the two gets, if it is free by then
        let other = lane.clone();
        let other = thread::spawn(move || assert_eq!(called(&other, 1, usize::MAX, wait), 1));
        assert_eq!(called(lane, 1, usize::MAX, wait), 1);
        other.join().unwrap();
    });
}

#[test]
fn work_that_waits_for_helpers_itself_gets_them() {
    threads_of_a_lane(|lane| {
        let (inner, came) = (lane.clone(), AtomicUsize::new(0));
        let work = || _ = came.fetch_add(called(&inner, 1, usize::MAX, wait), Ordering::SeqCst);
        lane.call(&work, 1, usize::MAX, wait);
        assert_eq!(came.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn where_no_thread_can_be_started_nobody_is_waited_for() {
    threads_of_a_lane(|lane| {
        sync::SPAWNS.store(false, Ordering::Relaxed);
        let mut ready = 1;
        assert_eq!(called(lane, 2, usize::MAX, |helpers| ready = helpers.ready), 0);
        assert_eq!(ready, 0);
    });
}

#[test]
fn threads_that_shall_end_do_not_leave_a_call_without_them() {
    threads_of_a_lane(|lane| {
        called(lane, 1, usize::MAX, wait);
        let other = lane.clone();
        let other = thread::spawn(move || other.end_idle());
        assert_eq!(called(lane, 1, usize::MAX, wait), 1);
        other.join().unwrap();
    });
}

/// Wakes the thread that waits for a future.
struct Reported(loom::sync::Mutex<bool>, loom::sync::Condvar);

impl Wake for Reported {
    fn wake(self: std::sync::Arc<Self>) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let message = std::sync::Arc::new(Reported(loom::sync::Mutex::new(false), loom::sync::Condvar::new()));
    let (waker, mut future) = (Waker::from(message.clone()), pin!(future));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let mut is_reported = message.0.lock().unwrap();
        while !std::mem::take(&mut *is_reported) {
            is_reported = message.1.wait(is_reported).unwrap();
        }
    }
}

/// Polls a future once, with a waker that does nothing.
fn poll(future: Pin<&mut impl Future>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// A model of a limiter that has admitted as many requests as it may.
fn requests(most: usize, model: impl Fn(&Arc<ConcurrencyLimiter>) + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || model(&Arc::new(ConcurrencyLimiter::new(most))));
}

#[test]
fn all_requests_begin_for_which_room_was_made() {
    requests(2, |limiter| {
        let in_flight = [block_on(limiter.enter()), block_on(limiter.enter())];
        let both = Arc::new((loom::sync::Mutex::new(0), loom::sync::Condvar::new()));
        let come = move |limiter: Arc<ConcurrencyLimiter>| {
            let _own = block_on(limiter.enter());
            // Each continues when the other has come, too.
            let mut come = both.0.lock().unwrap();
            *come += 1;
            both.1.notify_all();
            while *come < 2 {
                come = both.1.wait(come).unwrap();
            }
        };
        let others = [(limiter.clone(), come.clone()), (limiter.clone(), come)];
        let others = others.map(|(limiter, come)| thread::spawn(move || come(limiter)));
        drop(in_flight);
        for other in others {
            other.join().unwrap();
        }
    });
}

#[test]
fn a_request_that_nobody_wants_any_more_leaves_its_room_to_others() {
    requests(1, |limiter| {
        let in_flight = block_on(limiter.enter());
        let mut unused = Box::pin(limiter.enter());
        assert!(!poll(unused.as_mut()));
        let other = limiter.clone();
        let other = thread::spawn(move || drop(block_on(other.enter())));
        limiter.on_throttle(false, Some(sync::now() + Duration::from_secs(5)));
        drop(in_flight);
        poll(unused.as_mut()); // the server asked to wait, so that it does, unless the other one did until then
        drop(unused);
        other.join().unwrap();
    });
}

#[test]
fn no_more_requests_are_under_way_than_may_be() {
    requests(1, |limiter| {
        let in_flight = Arc::new(AtomicUsize::new(0));
        let shared = limiter.clone();
        together(1, move |_| {
            let pass = block_on(shared.enter());
            assert_eq!(in_flight.fetch_add(1, Ordering::SeqCst), 0);
            in_flight.fetch_sub(1, Ordering::SeqCst);
            shared.on_success();
            drop(pass);
        });
    });
}

#[test]
fn a_child_does_not_wait_for_requests_of_its_parent() {
    requests(1, |limiter| {
        let parents = block_on(limiter.enter());
        sync::PROCESS.with(|own| own.set(2));
        let own = block_on(limiter.enter());
        drop(parents); // by a thread of the child that was in it
        assert!(!poll(pin!(limiter.enter())));
        assert_eq!(limiter.limit(), 1);
        drop(own);
        assert!(poll(pin!(limiter.enter())));
    });
}
