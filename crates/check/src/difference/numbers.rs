//! The numbers in two pieces of tensors, and how far apart they are.

use max_weights::cast::{CastOptions, cast, elements_per_group};
use max_weights::tensor::Element;
use max_weights::{DType, Encoding, Result, quant};

/// When two values are the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct EqualityRule {
    pub(super) rtol: f64,
    pub(super) atol: f64,
    /// If their bytes are.
    pub(super) exact: bool,
}

/// What elements of one side are.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Type {
    Plain(DType),
    Packed(Encoding),
    /// Only the bytes are known, this many for each element.
    Bytes(usize),
}

/// In what numbers the two sides meet.
#[derive(Debug, Clone, Copy, PartialEq)]
enum CommonNumbers {
    /// All values of both are floats of 32 bits.
    Single,
    /// Floats of 64 bits.
    Double,
    /// Integers, of which some have 64 bits.
    Integer,
    /// Complex numbers of two floats of 32 bits.
    Complex,
    /// Bytes.
    Bytes,
}

/// How a pair of tensors is compared.
#[derive(Debug, Clone, Copy)]
pub(super) struct CompareKind {
    sides: [Type; 2],
    meeting: CommonNumbers,
}

/// Memory for decoded values, kept between two pieces.
#[derive(Debug, Default)]
pub(super) struct CompareBuffers {
    sides: [Vec<u8>; 2],
    rounded: Vec<u8>,
}

impl CompareKind {
    /// None where values of these types are not compared.
    pub(super) fn of(a: Element<'_>, b: Element<'_>) -> Option<Self> {
        let of = |element: Element<'_>| match element {
            // Bools count as the bytes that they are: 2 is not 1.
            Element::Plain(DType::Bool) => Type::Plain(DType::UInt8),
            Element::Plain(dtype) => Type::Plain(dtype),
            Element::Packed(encoding) => Type::Packed(encoding),
            Element::Torch(dtype) => Type::Bytes(dtype.bytes() as usize),
            Element::Unknown(_) | Element::NoArray(..) => Type::Bytes(1),
        };
        let sides = [of(a), of(b)];
        let meeting = match sides {
            [Type::Bytes(_), _] | [_, Type::Bytes(_)] => (a == b).then_some(CommonNumbers::Bytes)?,
            [Type::Plain(DType::Complex64), Type::Plain(DType::Complex64)] => CommonNumbers::Complex,
            [Type::Plain(DType::Complex64), _] | [_, Type::Plain(DType::Complex64)] => return None,
            _ if sides.iter().all(|side| side.fits_single()) => CommonNumbers::Single,
            [Type::Plain(a), Type::Plain(b)] if is_integer(a) && is_integer(b) => CommonNumbers::Integer,
            _ => CommonNumbers::Double,
        };
        Some(Self { sides, meeting })
    }

    /// Whether both sides are of one type.
    pub(super) fn is_one(&self) -> bool {
        let [a, b] = self.sides;
        a == b
    }

    /// The number of units of a side for `elements` elements.
    pub(super) fn units(&self, side: usize, elements: u64) -> u64 {
        elements.div_ceil(self.per_unit(side))
    }

    /// The number of elements for `units` units of a side.
    pub(super) fn elements(&self, side: usize, units: u64) -> u64 {
        units.saturating_mul(self.per_unit(side))
    }

    fn per_unit(&self, side: usize) -> u64 {
        match self.sides.get(side) {
            Some(Type::Plain(dtype)) => elements_per_group(*dtype) as u64,
            Some(Type::Packed(encoding)) => encoding.elements_per_block() as u64,
            Some(Type::Bytes(_)) | None => 1,
        }
    }

    /// How far apart two pieces are whose first element has this number.
    pub(super) fn sum(
        &self,
        first: u64,
        a: &[u8],
        b: &[u8],
        rule: EqualityRule,
        buffer: &mut CompareBuffers,
    ) -> Result<Sum> {
        let [of_a, of_b] = self.sides;
        let [buffer_a, buffer_b] = &mut buffer.sides;
        let mut sum = Sum { has_numbers: true, ..Sum::default() };
        match self.meeting {
            CommonNumbers::Bytes => sum.has_numbers = false,
            CommonNumbers::Single => {
                let (x, y) = (of_a.decoded(DType::Float32, a, buffer_a)?, of_b.decoded(DType::Float32, b, buffer_b)?);
                let number = |bytes: &[u8; 4]| f64::from(f32::from_le_bytes(*bytes));
                sum.reals(first, x.as_chunks().0.iter().map(number), y.as_chunks().0.iter().map(number), rule);
            }
            CommonNumbers::Double => {
                let (x, y) = (of_a.decoded(DType::Float64, a, buffer_a)?, of_b.decoded(DType::Float64, b, buffer_b)?);
                let number = |bytes: &[u8; 8]| f64::from_le_bytes(*bytes);
                let (x, y) = (x.as_chunks().0.iter().map(number), y.as_chunks().0.iter().map(number));
                match (of_a.is_long(), of_b.is_long()) {
                    (true, false) => {
                        sum.add_all(first, of_a.integers(a).zip(y).map(|(x, y)| (x as f64, y, apart(x, y))), rule);
                    }
                    (false, true) => {
                        sum.add_all(first, x.zip(of_b.integers(b)).map(|(x, y)| (x, y as f64, apart(y, x))), rule);
                    }
                    _ => sum.reals(first, x, y, rule),
                }
            }
            CommonNumbers::Integer => {
                let pairs = of_a.integers(a).zip(of_b.integers(b));
                let distances = pairs.map(|(x, y)| (x as f64, y as f64, (x - y).unsigned_abs() as f64));
                sum.add_all(first, distances, rule);
            }
            CommonNumbers::Complex => sum.complex(first, a.as_chunks().0, b.as_chunks().0, rule),
        }
        if !self.is_one() {
            sum.not_rounded = [!is_rounded(of_a, a, of_b, b, buffer)?, !is_rounded(of_b, b, of_a, a, buffer)?];
        } else if rule.exact || self.meeting == CommonNumbers::Bytes {
            let bytes = of_a.bytes_per_unit();
            let differing = a.chunks(bytes).zip(b.chunks(bytes)).filter(|(x, y)| x != y);
            sum.differing = self.elements(0, differing.count() as u64);
        }
        Ok(sum)
    }
}

impl Type {
    /// Whether every value is a float of 32 bits.
    fn fits_single(self) -> bool {
        use DType::{Float64, Int32, Int64, UInt32, UInt64};
        match self {
            Self::Plain(dtype) => !matches!(dtype, Float64 | Int32 | Int64 | UInt32 | UInt64 | DType::Complex64),
            Self::Packed(_) => true,
            Self::Bytes(_) => false,
        }
    }

    /// Bytes of an element, or of the smallest group or block of them that has whole ones.
    fn bytes_per_unit(self) -> usize {
        match self {
            Self::Plain(dtype) => elements_per_group(dtype) * dtype.bits() / 8,
            Self::Packed(encoding) => encoding.bytes_per_block(),
            Self::Bytes(bytes) => bytes.max(1),
        }
    }

    /// The values as floats of this dtype.
    fn decoded<'a>(self, to: DType, bytes: &'a [u8], buffer: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        match self {
            Self::Plain(dtype) if dtype == to => return Ok(bytes),
            Self::Plain(dtype) => {
                buffer.resize(bytes.len() * 8 / dtype.bits() * to.bits() / 8, 0);
                cast(dtype, to, bytes, buffer, CastOptions::default())?;
            }
            Self::Packed(encoding) => {
                buffer.resize(quant::elements(encoding, bytes.len())? * 4, 0);
                quant::dequantize(encoding, bytes, DType::Float32, buffer, false)?;
                if to != DType::Float32 {
                    let single = std::mem::take(buffer);
                    buffer.resize(single.len() / 4 * to.bits() / 8, 0);
                    cast(DType::Float32, to, &single, buffer, CastOptions::default())?;
                }
            }
            Self::Bytes(_) => {}
        }
        Ok(buffer)
    }

    /// Whether it has integers that floats of 64 bits do not have.
    fn is_long(self) -> bool {
        matches!(self, Self::Plain(DType::Int64 | DType::UInt64))
    }

    /// The values of an integer dtype.
    fn integers(self, bytes: &[u8]) -> impl Iterator<Item = i128> {
        use DType::{Int8, Int16, Int32, Int64, UInt16, UInt32, UInt64};
        let dtype = if let Self::Plain(dtype) = self { dtype } else { DType::UInt8 };
        let is_signed = matches!(dtype, Int8 | Int16 | Int32 | Int64);
        let width = match dtype {
            Int16 | UInt16 => 2,
            Int32 | UInt32 => 4,
            Int64 | UInt64 => 8,
            _ => 1,
        };
        bytes.chunks_exact(width).map(move |bytes| {
            let negative = is_signed && bytes.last().is_some_and(|byte| byte & 0x80 != 0);
            let mut whole = if negative { [0xff; 16] } else { [0; 16] };
            whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            i128::from_le_bytes(whole)
        })
    }
}

/// How far an integer of 64 bits is from a float, which the integer as a float would not say exactly.
fn apart(long: i128, float: f64) -> f64 {
    if float.fract() == 0.0 && float.abs() < 2.0_f64.powi(100) {
        return (long - float as i128).unsigned_abs() as f64;
    }
    (long as f64 - float).abs()
}

fn is_integer(dtype: DType) -> bool {
    use DType::{Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64};
    matches!(dtype, Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64)
}

/// Whether the values of `to` are those of `from`, each rounded to its dtype.
#[allow(clippy::float_cmp)] // whether they are the same is the question
fn is_rounded(of_from: Type, from: &[u8], of_to: Type, to: &[u8], buffer: &mut CompareBuffers) -> Result<bool> {
    let (Type::Plain(of_from), Type::Plain(of_to)) = (of_from, of_to) else { return Ok(false) };
    buffer.rounded.resize(to.len(), 0);
    cast(of_from, of_to, from, &mut buffer.rounded, CastOptions::default())?;
    if buffer.rounded == to {
        return Ok(true);
    }
    // NaN may have other bits, and zero another sign.
    let [x, y] = &mut buffer.sides;
    let (x, y) = (
        Type::Plain(of_to).decoded(DType::Float64, &buffer.rounded, x)?,
        Type::Plain(of_to).decoded(DType::Float64, to, y)?,
    );
    let numbers = |bytes: &[[u8; 8]], at: usize| bytes.get(at).map_or(0.0, |bytes| f64::from_le_bytes(*bytes));
    let (x, y) = (x.as_chunks().0, y.as_chunks().0);
    Ok((0..x.len()).all(|at| {
        let (x, y) = (numbers(x, at), numbers(y, at));
        x == y || (x.is_nan() && y.is_nan())
    }))
}

/// How far apart the numbers of some pieces are.
#[derive(Debug, Clone, Default)]
pub(super) struct Sum {
    pub(super) differing: u64,
    pub(super) nans: u64,
    pub(super) largest: f64,
    /// The number of the first element whose difference is the largest.
    pub(super) at: Option<u64>,
    pub(super) pair: (f64, f64),
    pub(super) relative: f64,
    dot: f64,
    squares: (f64, f64),
    has_numbers: bool,
    /// Whether B is not A rounded, and A not B.
    not_rounded: [bool; 2],
}

impl Sum {
    /// Adds what is known of later pieces.
    pub(super) fn add(&mut self, later: &Self) {
        self.differing += later.differing;
        self.nans += later.nans;
        if later.largest > self.largest {
            (self.largest, self.at, self.pair) = (later.largest, later.at, later.pair);
        }
        self.relative = self.relative.max(later.relative);
        self.dot += later.dot;
        self.squares.0 += later.squares.0;
        self.squares.1 += later.squares.1;
        self.has_numbers &= later.has_numbers;
        let [b, a] = later.not_rounded;
        self.not_rounded = [self.not_rounded[0] | b, self.not_rounded[1] | a];
    }

    /// The cosine of the angle between both, as vectors of their finite values.
    pub(super) fn cosine(&self) -> Option<f64> {
        let length = self.squares.0.sqrt() * self.squares.1.sqrt();
        let cosine = self.dot / length;
        (self.has_numbers && length > 0.0 && cosine.is_finite()).then(|| cosine.clamp(-1.0, 1.0))
    }

    /// Whether one side is the other, rounded to its dtype.
    pub(super) fn is_rounded(&self) -> bool {
        !self.not_rounded[0] || !self.not_rounded[1]
    }

    fn reals(&mut self, first: u64, a: impl Iterator<Item = f64>, b: impl Iterator<Item = f64>, rule: EqualityRule) {
        self.add_all(first, a.zip(b).map(|(x, y)| (x, y, (x - y).abs())), rule);
    }

    /// Adds pairs of numbers, each with how far they are apart.
    fn add_all(&mut self, first: u64, pairs: impl Iterator<Item = (f64, f64, f64)>, rule: EqualityRule) {
        for (at, (x, y, distance)) in pairs.enumerate() {
            if distance.is_finite() {
                self.dot += x * y;
                self.squares.0 += x * x;
                self.squares.1 += y * y;
                self.differing += u64::from(distance > rule.allowed(y.abs()));
                if distance > 0.0 {
                    self.far(first + at as u64, distance, y.abs(), (x, y));
                }
            } else {
                self.not_finite(first + at as u64, x, y);
            }
        }
    }

    /// The distance of complex numbers is the absolute value of their difference, and their cosine that of their parts.
    fn complex(&mut self, first: u64, a: &[[u8; 8]], b: &[[u8; 8]], rule: EqualityRule) {
        let parts = |bytes: &[u8; 8]| {
            let both = u64::from_le_bytes(*bytes);
            (f64::from(f32::from_bits(both as u32)), f64::from(f32::from_bits((both >> 32) as u32)))
        };
        for (at, (x, y)) in a.iter().zip(b).enumerate() {
            let (x, y) = (parts(x), parts(y));
            let (sizes, distance) = ((x.0.hypot(x.1), y.0.hypot(y.1)), (x.0 - y.0).hypot(x.1 - y.1));
            if distance.is_finite() {
                self.dot += x.0 * y.0 + x.1 * y.1;
                self.squares.0 += x.0 * x.0 + x.1 * x.1;
                self.squares.1 += y.0 * y.0 + y.1 * y.1;
                self.differing += u64::from(distance > rule.allowed(sizes.1));
                if distance > 0.0 {
                    self.far(first + at as u64, distance, sizes.1, sizes);
                }
            } else if x != y {
                let any_nan =
                    |parts: (f64, f64)| if parts.0.is_nan() || parts.1.is_nan() { f64::NAN } else { f64::INFINITY };
                match (any_nan(x), any_nan(y)) {
                    (x, y) if x.is_nan() || y.is_nan() => self.not_finite(first + at as u64, x, y),
                    _ => {
                        self.differing += 1;
                        self.far(first + at as u64, f64::INFINITY, sizes.1, sizes);
                    }
                }
            }
        }
    }

    /// Two values that differ by a distance.
    fn far(&mut self, at: u64, distance: f64, size: f64, pair: (f64, f64)) {
        if distance > self.largest {
            (self.largest, self.at, self.pair) = (distance, Some(at), pair);
        }
        if size > 0.0 && distance > self.relative * size {
            self.relative = distance / size;
        }
    }

    /// Two values of which one is not finite, or whose distance is not.
    #[allow(clippy::float_cmp)] // infinities
    fn not_finite(&mut self, at: u64, x: f64, y: f64) {
        match (x.is_nan(), y.is_nan()) {
            (true, true) => {}
            (false, false) if x == y => {}
            (false, false) => {
                self.differing += 1;
                self.far(at, f64::INFINITY, y.abs(), (x, y));
            }
            _ => {
                self.differing += 1;
                self.nans += 1;
            }
        }
    }
}

impl EqualityRule {
    /// How far a value may be from one of this size.
    fn allowed(&self, size: f64) -> f64 {
        self.atol + self.rtol * size
    }
}
