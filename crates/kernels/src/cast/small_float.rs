//! Floating-point formats described by constants, and one codec for all of them.
//!
//! A value is decoded into a [`FloatValue`], which holds every value of every format and integer type without loss. It is rounded once, to nearest even,
//! when it is encoded again. Slow and plain on purpose: every faster way is compared with this one.

use crate::dtype::DType;

/// How a format uses the codes at the end of its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Specials {
    /// IEEE 754: the highest exponent holds infinity and the NaNs.
    Ieee,
    /// No infinity; NaN is the code of all ones, with either sign (OCP e4m3).
    AllOnesNan,
    /// No infinity and no negative zero; the code of negative zero is the only NaN.
    NegativeZeroNan,
    /// Neither infinity nor NaN (OCP fp6 and fp4).
    None,
    /// Powers of two without sign or zero; all ones is NaN (OCP e8m0).
    PowerOfTwo,
}

/// A floating-point format of at most 64 bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct FloatFormat {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    specials: Specials,
}

/// Any value of any real dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FloatValue {
    /// Zero, with its sign.
    Zero {
        /// True for negative zero.
        negative: bool,
    },
    /// `significand * 2^exponent`, with its sign; the significand is not zero.
    Finite {
        /// The sign.
        negative: bool,
        /// The digits, not normalised.
        significand: u64,
        /// The power of two that they count.
        exponent: i32,
    },
    /// An infinity.
    Infinite {
        /// The sign.
        negative: bool,
    },
    /// Not a number.
    Nan {
        /// The sign.
        negative: bool,
        /// The mantissa, moved to the top: bit 63 is the quiet bit, which is always set.
        payload: u64,
    },
}

const QUIET: u64 = 1 << 63;

impl FloatValue {
    /// The number that an integer is.
    pub(super) fn from_integer(value: i128) -> Self {
        let negative = value < 0;
        // Every integer dtype has at most 64 bits, so the magnitude fits.
        let significand = value.unsigned_abs() as u64;
        if significand == 0 { Self::Zero { negative } } else { Self::Finite { negative, significand, exponent: 0 } }
    }

    /// Truncated toward zero and limited to `low..=high`; NaN gives zero.
    pub(super) fn to_integer(self, low: i128, high: i128) -> i128 {
        match self {
            Self::Zero { .. } | Self::Nan { .. } => 0,
            Self::Infinite { negative } => {
                if negative {
                    low
                } else {
                    high
                }
            }
            Self::Finite { negative, significand, exponent } => {
                let magnitude = match exponent {
                    64.. => i128::MAX, // beyond every integer dtype
                    0..64 => i128::from(significand) << exponent,
                    -63..0 => i128::from(significand >> -exponent),
                    _ => 0,
                };
                (if negative { -magnitude } else { magnitude }).clamp(low, high)
            }
        }
    }

    /// True for everything but zero.
    pub(super) fn to_bool(self) -> bool {
        !matches!(self, Self::Zero { .. })
    }
}

impl FloatFormat {
    /// The format of a real floating-point dtype.
    pub(super) const fn of(dtype: DType) -> Option<Self> {
        use Specials::{AllOnesNan, Ieee, NegativeZeroNan, None as NoSpecials, PowerOfTwo};
        let (exponent_bits, mantissa_bits, bias, specials) = match dtype {
            DType::Float4E2M1Fn => (2, 1, 1, NoSpecials),
            DType::Float6E2M3Fn => (2, 3, 1, NoSpecials),
            DType::Float6E3M2Fn => (3, 2, 3, NoSpecials),
            DType::Float8E8M0Fnu => (8, 0, 127, PowerOfTwo),
            DType::Float8E4M3Fn => (4, 3, 7, AllOnesNan),
            DType::Float8E4M3Fnuz => (4, 3, 8, NegativeZeroNan),
            DType::Float8E5M2 => (5, 2, 15, Ieee),
            DType::Float8E5M2Fnuz => (5, 2, 16, NegativeZeroNan),
            DType::Float16 => (5, 10, 15, Ieee),
            DType::BFloat16 => (8, 7, 127, Ieee),
            DType::Float32 => (8, 23, 127, Ieee),
            DType::Float64 => (11, 52, 1023, Ieee),
            _ => return None,
        };
        Some(Self { exponent_bits, mantissa_bits, bias, specials })
    }

    /// The bits of exponent and mantissa, the bias, and the number of the specials: of all kinds, in the order of [`Specials`].
    pub(super) const fn parts(self) -> [u64; 4] {
        [self.exponent_bits as u64, self.mantissa_bits as u64, self.bias as u64, self.specials as u64]
    }

    /// The smallest positive value that has all digits of the format; none for a format in which every value has.
    pub(super) fn smallest_normal(self) -> Option<f64> {
        let exponent = match self.specials {
            Specials::PowerOfTwo => return None,
            _ => 1 - self.bias,
        };
        Some(2f64.powi(exponent))
    }

    const fn sign_bit(self) -> u64 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// The code of positive infinity in an IEEE format.
    const fn infinity(self) -> u64 {
        ((1 << self.exponent_bits) - 1) << self.mantissa_bits
    }

    /// The code of the largest finite value.
    const fn largest(self) -> u64 {
        match self.specials {
            Specials::Ieee => self.infinity() - 1,
            Specials::AllOnesNan => self.sign_bit() - 2,
            Specials::NegativeZeroNan | Specials::None => self.sign_bit() - 1,
            Specials::PowerOfTwo => 254,
        }
    }

    /// The value of a code.
    pub(super) const fn decode(self, code: u64) -> FloatValue {
        if matches!(self.specials, Specials::PowerOfTwo) {
            return match code & 0xff {
                0xff => FloatValue::Nan { negative: false, payload: QUIET },
                power => FloatValue::Finite { negative: false, significand: 1, exponent: power as i32 - self.bias },
            };
        }
        let negative = code & self.sign_bit() != 0;
        let magnitude = code & (self.sign_bit() - 1);
        match self.specials {
            Specials::Ieee if magnitude == self.infinity() => return FloatValue::Infinite { negative },
            Specials::Ieee if magnitude > self.infinity() => {
                let payload = (magnitude << (64 - self.mantissa_bits)) | QUIET;
                return FloatValue::Nan { negative, payload };
            }
            Specials::AllOnesNan if magnitude > self.largest() => return FloatValue::Nan { negative, payload: QUIET },
            Specials::NegativeZeroNan if negative && magnitude == 0 => {
                return FloatValue::Nan { negative: false, payload: QUIET };
            }
            _ => {}
        }
        if magnitude == 0 {
            return FloatValue::Zero { negative };
        }
        let fraction = magnitude & ((1 << self.mantissa_bits) - 1);
        let lowest = 1 - self.bias - self.mantissa_bits as i32;
        match (magnitude >> self.mantissa_bits) as i32 {
            0 => FloatValue::Finite { negative, significand: fraction, exponent: lowest },
            field => {
                let significand = fraction | (1 << self.mantissa_bits);
                FloatValue::Finite { negative, significand, exponent: lowest + field - 1 }
            }
        }
    }

    /// The code of a number: rounded once, to nearest, ties to even.
    pub(super) const fn encode(self, number: FloatValue, saturate: bool) -> u64 {
        if matches!(self.specials, Specials::PowerOfTwo) {
            return self.encode_power_of_two(number, saturate);
        }
        match number {
            FloatValue::Zero { negative } => self.with_sign(0, negative),
            FloatValue::Infinite { negative } => {
                // Sixteen bits and more keep infinity even when saturating; narrower types then have finite values only.
                let keep = !saturate || self.exponent_bits + self.mantissa_bits >= 15;
                if keep && matches!(self.specials, Specials::Ieee) {
                    self.with_sign(self.infinity(), negative)
                } else {
                    self.overflow(negative, saturate)
                }
            }
            FloatValue::Nan { negative, payload } => match self.specials {
                Specials::Ieee => {
                    self.with_sign(self.infinity() | ((payload | QUIET) >> (64 - self.mantissa_bits)), negative)
                }
                Specials::AllOnesNan => self.with_sign(self.sign_bit() - 1, negative),
                Specials::NegativeZeroNan => self.sign_bit(),
                Specials::None | Specials::PowerOfTwo => self.with_sign(0, negative),
            },
            FloatValue::Finite { negative, significand, exponent } => {
                let top = exponent + 63 - significand.leading_zeros() as i32;
                let lowest = 1 - self.bias - self.mantissa_bits as i32;
                let quantum = max(top - self.mantissa_bits as i32, lowest);
                let digits = round_to_even(significand, quantum - exponent);
                // A carry out of the digits lands in the exponent field, where it belongs; so does the implicit bit.
                let code = (((quantum - lowest) as u64) << self.mantissa_bits) + digits;
                if code > self.largest() { self.overflow(negative, saturate) } else { self.with_sign(code, negative) }
            }
        }
    }

    const fn with_sign(self, magnitude: u64, negative: bool) -> u64 {
        let has_negative_zero = !matches!(self.specials, Specials::NegativeZeroNan);
        if negative && (magnitude != 0 || has_negative_zero) { magnitude | self.sign_bit() } else { magnitude }
    }

    const fn overflow(self, negative: bool, saturate: bool) -> u64 {
        match self.specials {
            _ if saturate => self.with_sign(self.largest(), negative),
            Specials::Ieee => self.with_sign(self.infinity(), negative),
            Specials::AllOnesNan => self.with_sign(self.sign_bit() - 1, negative),
            Specials::NegativeZeroNan => self.sign_bit(),
            Specials::None | Specials::PowerOfTwo => self.with_sign(self.largest(), negative),
        }
    }

    /// As ml_dtypes: zero and negative values are NaN, ties go up, and between the two smallest powers everything goes up.
    const fn encode_power_of_two(self, number: FloatValue, saturate: bool) -> u64 {
        const NAN: u64 = 0xff;
        let overflow = if saturate { self.largest() } else { NAN };
        match number {
            FloatValue::Infinite { negative: false } => overflow,
            FloatValue::Finite { negative: false, significand, exponent } => {
                let top = exponent + 63 - significand.leading_zeros() as i32;
                let digits = significand << significand.leading_zeros();
                let power = top + self.bias;
                if power < 0 {
                    0
                } else if power == 0 {
                    (digits != 1 << 63) as u64
                } else {
                    let code = power as u64 + ((digits >> 62) & 1);
                    if code > self.largest() { overflow } else { code }
                }
            }
            _ => NAN,
        }
    }
}

const fn max(a: i32, b: i32) -> i32 {
    if a > b { a } else { b }
}

/// `significand / 2^shift`, to nearest even.
const fn round_to_even(significand: u64, shift: i32) -> u64 {
    match shift {
        66.. => 0,
        1..66 => {
            let wide = significand as u128;
            let half = 1u128 << (shift - 1);
            let kept = wide >> shift;
            let rest = wide & ((1 << shift) - 1);
            let up = rest > half || (rest == half && kept & 1 == 1);
            kept as u64 + up as u64
        }
        // The quantum lies at most `mantissa_bits` below the top digit, so nothing is shifted out.
        _ => significand << -shift,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_code_decodes_to_a_number_that_encodes_to_it() {
        for dtype in DType::all().filter(|dtype| dtype.bits() <= 16) {
            let Some(format) = FloatFormat::of(dtype) else { continue };
            for code in 0..1u64 << dtype.bits() {
                let number = format.decode(code);
                if !matches!(number, FloatValue::Nan { .. }) {
                    assert_eq!(format.encode(number, false), code, "{dtype} {code:#x}");
                }
            }
        }
    }

    #[test]
    fn largest_values_are_those_of_the_standards() {
        let largest = |dtype| {
            let format = FloatFormat::of(dtype).expect("a float");
            f64::from_bits(
                FloatFormat::of(DType::Float64).expect("a float").encode(format.decode(format.largest()), false),
            )
        };
        let known = [
            (DType::Float4E2M1Fn, 6.0),
            (DType::Float6E2M3Fn, 7.5),
            (DType::Float6E3M2Fn, 28.0),
            (DType::Float8E4M3Fn, 448.0),
            (DType::Float8E4M3Fnuz, 240.0),
            (DType::Float8E5M2, 57344.0),
            (DType::Float8E5M2Fnuz, 57344.0),
            (DType::Float8E8M0Fnu, 2f64.powi(127)),
            (DType::Float16, 65504.0),
            (DType::Float32, f64::from(f32::MAX)),
        ];
        for (dtype, value) in known {
            assert!((largest(dtype) - value).abs() < f64::EPSILON, "{dtype}");
        }
    }

    #[test]
    fn integers_beyond_the_significand_are_rounded_once() {
        let f16 = FloatFormat::of(DType::Float16).expect("a float");
        // 2049 is a tie between 2048 and 2050; one more bit far below breaks it.
        assert_eq!(f16.encode(FloatValue::from_integer(2049), false), 0x6800);
        let bf16 = FloatFormat::of(DType::BFloat16).expect("a float");
        let tie = (0x101i128 << 40) | 1;
        assert_eq!(
            bf16.encode(FloatValue::from_integer(tie), false),
            bf16.encode(FloatValue::from_integer(0x102i128 << 40), false)
        );
        assert_eq!(f16.encode(FloatValue::from_integer(70000), false), 0x7c00);
        assert_eq!(f16.encode(FloatValue::from_integer(-70000), true), 0xfbff);
    }

    #[test]
    fn floats_truncate_and_saturate_to_integers() {
        let f64_format = FloatFormat::of(DType::Float64).expect("a float");
        let cases =
            [1.9, -1.9, 1e30, -1e30, f64::NAN, f64::INFINITY, 9.3e18, 1.8e19, 0.3, 2f64.powi(63), 2f64.powi(62)];
        for value in cases {
            let number = f64_format.decode(value.to_bits());
            assert_eq!(number.to_integer(i64::MIN.into(), i64::MAX.into()), i128::from(value as i64), "{value}");
            assert_eq!(number.to_integer(0, u64::MAX.into()), i128::from(value as u64), "{value}");
            assert_eq!(number.to_integer(-128, 127), i128::from(value as i8), "{value}");
        }
    }
}
