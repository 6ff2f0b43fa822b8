//! What x86-64 has beside [`lanes`](super::lanes): decoders to f16 and bf16 that look elements up, and matrices of words that change places in registers.

#![allow(unsafe_code)] // the instructions of a level
#![allow(clippy::inline_always)] // or each operation on lanes is a call

pub(super) mod looked_up;
pub(super) mod transpose;

use super::Encoding;
