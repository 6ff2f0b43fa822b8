//! The hashed form of an element: a word of 32 bits, and an upper word for longer ones.
//!
//! Floats are hashed as the float32 of the same value, and integers as 64-bit integers, so that a lossless conversion does not change the
//! fingerprint.

#![allow(clippy::inline_always)] // the loops over these are compiled for each level

/// Elements of one type.
pub(super) trait WordColumns {
    /// Bytes of an element.
    const BYTES: usize;
    /// Whether the word above is ever anything but 0.
    const HAS_HIGH: bool = false;
    /// The lower word and the one above it.
    fn words(element: &[u8]) -> (u32, u32);
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident: $bytes:literal, |$element:ident: $number:ty| $low:expr) => {
        $(#[$doc])*
        pub(super) struct $name;

        impl WordColumns for $name {
            const BYTES: usize = $bytes;

            #[inline(always)]
            fn words(element: &[u8]) -> (u32, u32) {
                let mut bytes = [0; $bytes];
                bytes.copy_from_slice(element);
                let $element = <$number>::from_le_bytes(bytes);
                ($low, 0)
            }
        }
    };
    ($(#[$doc:meta])* $name:ident: $bytes:literal, high, |$element:ident: $number:ty| $words:expr) => {
        $(#[$doc])*
        pub(super) struct $name;

        impl WordColumns for $name {
            const BYTES: usize = $bytes;
            const HAS_HIGH: bool = true;

            #[inline(always)]
            fn words(element: &[u8]) -> (u32, u32) {
                let mut bytes = [0; $bytes];
                bytes.copy_from_slice(element);
                let $element = <$number>::from_le_bytes(bytes);
                $words
            }
        }
    };
}

words!(Unsigned8: 1, |code: u8| u32::from(code));
words!(Signed8: 1, |code: i8| i32::from(code) as u32);
words!(Unsigned16: 2, |code: u16| u32::from(code));
words!(Signed16: 2, |code: i16| i32::from(code) as u32);
words!(Signed32: 4, |code: u32| code);
words!(
    /// The integer of 64 bits less the sign-extended lower word has nothing below bit 32.
    Unsigned32: 4, high, |code: u32| (code, code >> 31)
);
words!(Integer64: 8, high, |code: u64| (code as u32, ((code >> 32) as u32).wrapping_add(code as u32 >> 31)));
words!(BFloat16: 2, |code: u16| u32::from(code) << 16);
words!(Float32: 4, |code: u32| code);
words!(
    /// Values that float32 can hold have its bits; for all others both words are used, the upper one plus one.
    Float64: 8, high, |code: u64| {
        let narrow = f64::from_bits(code) as f32;
        let is_exact = f64::from(narrow).to_bits() == code;
        if is_exact { (narrow.to_bits(), 0) } else { (code as u32, ((code >> 32) as u32).wrapping_add(1)) }
    }
);
