//! The processor's floating-point control register, which another library may have changed for the calling thread.
//!
//! `torch.set_flush_denormal(True)` makes it flush denormals; a cast keeps them. The module of x86-64 explains the consequences for Rust.

#![allow(unsafe_code)] // the register has no safe access

use std::arch::asm;

/// The default is zero: round to nearest, keep denormals and the payloads of NaNs, no traps. These bits change that: alternative half precision,
/// default NaNs, flushing, rounding, flushing of half precision, and traps.
const CONTROL: u64 = 1 << 26 | 1 << 25 | 1 << 24 | 3 << 22 | 1 << 19 | 0x9f00;

/// Restores the register when dropped.
struct Restore(u64);

impl Drop for Restore {
    fn drop(&mut self) {
        set(self.0);
    }
}

/// Runs `f` with the default of the register, and restores it afterwards.
pub(crate) fn with_default_rounding<R>(f: impl FnOnce() -> R) -> R {
    let current = get();
    if current & CONTROL == 0 {
        return f();
    }
    let _restore = Restore(current);
    set(current & !CONTROL);
    f()
}

fn get() -> u64 {
    let value: u64;
    // SAFETY: reads the register, which programs may read, and changes nothing.
    unsafe { asm!("mrs {}, fpcr", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

fn set(value: u64) {
    // SAFETY: the value is one that was read, unchanged or with bits cleared, so that it sets no reserved bit. Memory may not be moved across it.
    unsafe { asm!("msr fpcr, {}", in(reg) value, options(nostack)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushing_of_denormals_is_off_inside_and_as_before_outside() {
        const FLUSH: u64 = 1 << 24;
        let before = get();
        set(before | FLUSH);
        let inside = with_default_rounding(get);
        let after = get();
        set(before);
        assert_eq!((inside & CONTROL, after & CONTROL), (0, FLUSH));
    }
}
