//! The processor's floating-point control register, which another library may have changed for the calling thread.
//!
//! `torch.set_flush_denormal(True)` makes it flush denormals; a cast keeps them.
//!
//! Rust assumes the default wherever its code runs, and requires an `asm!` block to leave the register's control bits unchanged. A caller that has
//! changed them breaks the first rule before anything here runs. Setting the default restores it from there on, and in the end the caller, who
//! relies on its own value, gets that back. Both blocks change the bits, which the second rule calls undefined, and there is no other way to change
//! them. It works because nothing that matters can move across a block: each may touch any memory (there is no `nomem`), and memory is where the
//! operands of the kernels come from. An unchanged register, which is the usual case, is only read.

#![allow(unsafe_code)] // the register has no safe access

use std::arch::asm;

/// Round to nearest, keep denormals, no traps.
const DEFAULT: u32 = 0x1f80;
/// All but the sticky exception flags.
const CONTROL: u32 = 0xffc0;

/// Restores the register when dropped.
struct Restore(u32);

impl Drop for Restore {
    fn drop(&mut self) {
        set(self.0);
    }
}

/// Runs `f` with the default of the register, and restores it afterwards.
pub(crate) fn with_default_rounding<R>(f: impl FnOnce() -> R) -> R {
    let current = get();
    if current & CONTROL == DEFAULT & CONTROL {
        return f();
    }
    let _restore = Restore(current);
    set(DEFAULT);
    f()
}

fn get() -> u32 {
    let mut value = 0u32;
    // SAFETY: writes the register's 32 bits to a local variable and changes no flag; SSE is part of x86-64.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut value, options(nostack, preserves_flags)) };
    value
}

fn set(value: u32) {
    // SAFETY: reads a local variable; the value is the default or one read before, so that it sets no reserved bit. `preserves_flags` would cover
    // the exceptions of the register, so it is not promised. The change of the control bits is the departure described above.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const value, options(nostack)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushing_of_denormals_is_off_inside_and_as_before_outside() {
        const FLUSH: u32 = DEFAULT | 0x8040;
        let before = get();
        set(FLUSH);
        let inside = with_default_rounding(get);
        let after = get();
        set(before);
        assert_eq!(inside & CONTROL, DEFAULT & CONTROL);
        assert_eq!(after & CONTROL, FLUSH & CONTROL);
    }
}
