//! Values of one process, such as threads and connections. A forked child inherits the memory of its parent's, and makes new ones.

use super::ForkMutex;

/// A value that is made at the first use in each process.
///
/// A child neither uses nor drops the value of its parent. A drop could wait for locks of threads that do not exist in the child, and could
/// unregister the parent's sockets from its poll.
pub struct ForkOnce<T>(ForkMutex<Option<ProcessOnce<T>>>);

struct ProcessOnce<T> {
    process: u32,
    value: Option<T>,
}

impl<T: Clone> ForkOnce<T> {
    /// Without a value.
    #[expect(clippy::new_without_default, reason = "it is a static, or the field of a type with a constructor")]
    pub const fn new() -> Self {
        Self(ForkMutex::new())
    }

    /// The value of this process, if it is fresh, or else a new one.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn get<E>(&self, is_fresh: impl Fn(&T) -> bool, make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let process = std::process::id();
        let mut owned = self.0.lock();
        let own = owned.as_ref().filter(|owned| owned.process == process).and_then(|owned| owned.value.as_ref());
        if let Some(value) = own.filter(|value| is_fresh(value)) {
            return Ok(value.clone());
        }
        let value = make()?;
        *owned = Some(ProcessOnce { process, value: Some(value.clone()) });
        Ok(value)
    }

    /// Makes the next use create a new value.
    pub fn forget(&self) {
        *self.0.lock() = None;
    }
}

impl<T> Drop for ProcessOnce<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.value.take());
        }
    }
}

impl<T> std::fmt::Debug for ForkOnce<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ForkOnce")
    }
}
