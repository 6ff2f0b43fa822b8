//! What every entry point does before its own work: count the call, fail it where a test asked for that, and know whether there is a driver.

use std::ffi::c_void;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::failures::{self, Planned};
use crate::result::{CUresult, DEINITIALIZED, INVALID_VALUE, NOT_INITIALIZED, Outcome, SUCCESS};

/// A place for a result that the caller of an entry point lends: null, or valid for a write of one `T`.
///
/// Only C makes one, by calling an entry point, and each of them is `unsafe` to call under exactly this promise.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the result; null is an invalid value, as for the driver.
    pub(crate) fn put(&self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so by the contract of the type it is valid for a `T`; `write` neither reads nor drops the old value.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// As `put`, and nothing where the caller does not want to know.
    pub(crate) fn put_if_requested(&self, value: T) {
        let _ = self.put(value);
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// A place whose type another argument says.
    pub(crate) fn cast<U>(&self) -> Out<U> {
        Out(self.0.cast())
    }

    /// The address, for results with a separate length.
    pub(crate) fn address(&self) -> *mut T {
        self.0
    }
}

/// One call of an entry point.
pub(crate) struct Call {
    pub(crate) name: &'static str,
    /// The result with which what this call issues is to fail when it is executed.
    pub(crate) later: Option<CUresult>,
}

/// The process that called `cuInit`; 0 before.
static OWNER: AtomicU32 = AtomicU32::new(0);
static ENDED: AtomicBool = AtomicBool::new(false);

/// From now on there is a driver, in this process and not in its forks.
pub(crate) fn begin() {
    OWNER.store(process::id(), Ordering::Release);
}

/// From now on every call says that the driver shuts down.
pub(crate) fn end() {
    ENDED.store(true, Ordering::Release);
}

pub(crate) fn is_owner() -> bool {
    OWNER.load(Ordering::Acquire) == process::id()
}

/// Runs an entry point. No lock of this library is taken before it is known that this process is not a fork: there they may be held for ever.
pub(crate) fn call(name: &'static str, body: impl FnOnce(Call) -> Outcome) -> CUresult {
    let owner = OWNER.load(Ordering::Acquire);
    let any_time =
        matches!(name, "cuInit" | "cuGetErrorName" | "cuGetErrorString" | "cuDriverGetVersion" | "cuGetProcAddress_v2");
    if ENDED.load(Ordering::Acquire) {
        return DEINITIALIZED;
    }
    if owner != process::id() && (owner != 0 || !any_time) {
        return NOT_INITIALIZED;
    }
    let later = match failures::plan(name) {
        Some(Planned::Now(result)) => return result,
        Some(Planned::Later(result)) => Some(result),
        None => None,
    };
    body(Call { name, later }).err().unwrap_or(SUCCESS)
}

/// The entry points of one file, with the C ABI and the names of the driver, and `functions`, the table of them.
///
/// The safety contract is that of the driver. An `Out` is null or valid for its value. Memory that is passed to a copy, a set or a launch lives
/// until the operation was executed. Strings end with a zero byte.
macro_rules! entry_points {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) |$call:pat_param| $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As the driver's function of this name; see [`crate::entry`].
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $crate::result::CUresult {
                $crate::entry::call(stringify!($name), |$call| $body)
            }
        )*

        pub(crate) fn functions() -> Vec<$crate::entry::Function> {
            vec![$($crate::entry::Function { name: stringify!($name), address: $name as *const std::ffi::c_void }),*]
        }
    };
}
pub(crate) use entry_points;

/// A row of the table of all entry points.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) address: *const c_void,
}

/// All entry points.
pub(crate) fn functions() -> Vec<Function> {
    let files = [
        crate::result::functions(),
        crate::devices::functions(),
        crate::contexts::functions(),
        crate::memory::functions(),
        crate::copies::functions(),
        crate::streams::functions(),
        crate::events::functions(),
        crate::kernels::functions(),
        crate::lookup::functions(),
    ];
    files.into_iter().flatten().collect()
}
