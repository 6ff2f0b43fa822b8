//! Lanes with lookup tables: an element of sixteen bits for each code of four or five bits.

#![allow(unsafe_code)] // declares what the registers of each level implement

use super::{Bytes32, Lanes};

/// Lanes that become tables.
///
/// # Safety
/// As for [`Lanes`].
pub(crate) trait Tables: Lanes {
    /// An element of sixteen bits for each code of four bits.
    type Table: Copy;

    /// Elements of f16, for a lookup; NaNs become quiet.
    unsafe fn f16_table(self) -> Self::Table;
    /// Elements of bf16, rounded to nearest even, for a lookup; none may be NaN or denormal. AVX-512 needs the instructions of AVX-512 BF16 for it.
    unsafe fn bf16_table(self) -> Self::Table;
    /// Writes the elements of thirty-two codes. `STREAM` needs the address to be a multiple of 16.
    unsafe fn look_up<const STREAM: bool>(table: Self::Table, codes: Bytes32, dst: *mut u8);
}

/// Lanes whose tables may have thirty-two elements.
///
/// # Safety
/// As for [`Lanes`].
pub(crate) trait WideTables: Tables {
    unsafe fn wide_f16_table(low: Self, high: Self) -> Self::Table;
    unsafe fn wide_bf16_table(low: Self, high: Self) -> Self::Table;
    /// Lanes from `first` on, each `TIMES` times.
    unsafe fn spread<const TIMES: i32>(self, first: i32) -> Self;
}
