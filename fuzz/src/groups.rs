//! Target `groups`: a matrix of packed integers with a scale for each group, whose parts may lie about their sizes and about each other.

use std::ops::Range;

use half::{bf16, f16};
use max_weights::buffer::{Buffer, PackedGroups, dequantize_groups};
use max_weights::dtype::DType;
use max_weights::memory::Storage;
use max_weights::quant::{CodeLayout, Groups, dequantize_group_rows};
use max_weights::workers::uninterrupted;

use super::floats::{FLOATS, check_element};
use super::program::Program;
use super::random::Random;
use super::{check_message, memory};

const LAYOUTS: [CodeLayout; 3] = [CodeLayout::Rows, CodeLayout::Gptq, CodeLayout::Awq];
/// Which output a word of AWQ has in each of its nibbles.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
/// Elements that are looked at one by one.
const LOOKED_AT: usize = 1 << 12;

/// The parts of a matrix, which own their memory.
struct Parts {
    layout: CodeLayout,
    bits: u32,
    rows: usize,
    cols: usize,
    packed: Vec<u8>,
    scales: Vec<u8>,
    scales_dtype: DType,
    zero_points: Option<Vec<u8>>,
    zero_point_offset: u32,
    groups: usize,
    group_size: usize,
    group_index: Option<Vec<u8>>,
}

/// Some rows are decoded: to the elements of the definition, or not at all.
pub fn check(input: &[u8]) {
    memory::bounded(input.len(), || {
        let mut program = Program::new(input);
        let mut parts = make(&mut program);
        let lies = program.one_in(2);
        if lies {
            lie(&mut program, &mut parts);
        }
        let dtype = FLOATS[program.below(3)];
        let (first, last) = (program.below(8), program.below(8));
        let rows = if lies { first..last } else { parts.rows * first.min(last) / 7..parts.rows * first.max(last) / 7 };
        let size = rows.len().saturating_mul(parts.cols).saturating_mul(dtype.bits() / 8);
        let mut out = vec![0xa5; size.min(1 << 20) + usize::from(lies && program.one_in(8))];
        match dequantize_group_rows(&parts.groups(), rows.clone(), &mut out, dtype, program.one_in(2)) {
            Ok(()) => compare(&parts, rows, &out, dtype),
            Err(error) => {
                check_message(&error.to_string());
                assert!(lies, "the parts fit together: {error}");
                assert!(out.iter().all(|byte| *byte == 0xa5), "an error leaves the output alone");
            }
        }
        whole(&mut program, &parts, lies);
    });
}

/// A matrix whose parts fit together.
fn make(program: &mut Program<'_>) -> Parts {
    let layout = LAYOUTS[program.below(3)];
    let bits = match layout {
        CodeLayout::Rows => 2 + program.below(7),
        CodeLayout::Gptq => [2, 3, 4, 8][program.below(4)],
        CodeLayout::Awq => 4,
    };
    let of_eight = if layout == CodeLayout::Awq { 8 } else { 1 };
    // More rows than are decoded at a time, or more columns.
    let (tall, wide) = match program.below(8) {
        6 => (8, 1),
        7 => (1, 10),
        _ => (1, 1),
    };
    let (rows, cols) = (program.below(70 / of_eight) * of_eight * tall, program.below(256) * wide);
    let group_size = 1 + program.below(cols + 4) * wide;
    let groups = cols.div_ceil(group_size);
    let words = |codes: usize| (codes * bits).div_ceil(32);
    let (packed, zeros) = match layout {
        CodeLayout::Rows => (rows * words(cols), words(rows) * groups),
        CodeLayout::Gptq => (words(cols) * rows, groups * words(rows)),
        CodeLayout::Awq => (cols * rows / 8, groups * rows / 8),
    };
    let mut random = Random::new(u64::from(program.byte()));
    let mut content = |bytes: usize| -> Vec<u8> { (0..bytes).map(|_| random.next() as u8).collect() };
    let scales_dtype = FLOATS[program.below(3)];
    let index = |entry: usize| (entry * 7 % groups.max(1)) as i32;
    Parts {
        layout,
        bits: bits as u32,
        rows,
        cols,
        packed: content(packed * 4),
        scales: content(rows * groups * scales_dtype.bits() / 8),
        scales_dtype,
        zero_points: program.one_in(2).then(|| content(zeros * 4)),
        zero_point_offset: u32::from(layout == CodeLayout::Gptq && program.one_in(2)),
        groups,
        group_size,
        group_index: program.one_in(3).then(|| (0..cols).flat_map(|entry| index(entry).to_le_bytes()).collect()),
    }
}

/// Changes something, which need not be a lie in the end.
fn lie(program: &mut Program<'_>, parts: &mut Parts) {
    for _ in 0..=program.below(2) {
        let (number, byte) = (program.dim() as usize, program.byte());
        match program.below(12) {
            0 => parts.rows = number,
            1 => parts.cols = number,
            2 => parts.groups = number,
            3 => parts.group_size = number,
            4 => parts.bits = number as u32,
            5 => parts.zero_point_offset = number as u32,
            6 => parts.scales_dtype = program.dtype(),
            7 => parts.layout = LAYOUTS[program.below(3)],
            8 => parts.packed.resize(number % 4096, byte),
            9 => parts.scales.resize(number % 4096, byte),
            10 => parts.zero_points = Some(vec![byte; number % 4096]),
            _ => match &mut parts.group_index {
                Some(index) if !index.is_empty() => {
                    let at = number % index.len();
                    index[at] = byte;
                }
                index => *index = Some(vec![byte; number % 4096]),
            },
        }
    }
}

impl Parts {
    fn groups(&self) -> Groups<'_> {
        Groups {
            layout: self.layout,
            bits: self.bits,
            rows: self.rows,
            cols: self.cols,
            packed: &self.packed,
            scales: &self.scales,
            scales_dtype: self.scales_dtype,
            zero_points: self.zero_points.as_deref(),
            zero_point_offset: self.zero_point_offset,
            groups: self.groups,
            group_size: self.group_size,
            group_index: self.group_index.as_deref(),
        }
    }

    /// A number of some bits in a string whose words are every `stride`th from `first` on.
    fn number(&self, words: &[u8], (first, stride): (usize, usize), index: usize, padded: bool) -> i32 {
        let bits = self.bits as usize;
        let bit = |bit: usize| {
            let at = match (padded, bit / bits, bit % bits) {
                (true, code, bit) => code / (32 / bits) * 32 + code % (32 / bits) * bits + bit,
                (false, ..) => bit,
            };
            i32::from(words[(first + at / 32 * stride) * 4 + at % 32 / 8] >> (at % 8) & 1)
        };
        (0..bits).map(|of_code| bit(index * bits + of_code) << of_code).sum()
    }

    /// An element by the definition.
    fn element(&self, row: usize, col: usize) -> f32 {
        let (bits, rows) = (self.bits as usize, self.rows);
        let group = match &self.group_index {
            Some(index) => index[col * 4..].first_chunk().map_or(0, |group| u32::from_le_bytes(*group) as usize),
            None => col / self.group_size,
        };
        let is_one =
            self.layout == CodeLayout::Rows && self.groups == 1 && self.scales.len() == self.scales_dtype.bits() / 8;
        let (scale_row, scale_rows) = if is_one { (0, 1) } else { (row, rows) };
        // Tensors have whole lines of words, also of bytes that are not.
        let padded = self.packed.len() / 4 / rows != (self.cols * bits).div_ceil(32)
            || self
                .zero_points
                .as_ref()
                .is_some_and(|points| points.len() / 4 / self.groups != (scale_rows * bits).div_ceil(32));
        let padded = padded && self.layout == CodeLayout::Rows;
        let row_words = self.packed.len() / 4 / rows;
        let nibble = AWQ_ORDER.iter().position(|output| *output == row % 8).unwrap_or(0);
        let code = match self.layout {
            CodeLayout::Rows => self.number(&self.packed, (row * row_words, 1), col, padded),
            CodeLayout::Gptq => self.number(&self.packed, (row, rows), col, false),
            CodeLayout::Awq => self.number(&self.packed, (col * rows / 8 + row / 8, 1), nibble, false),
        };
        let stored = self.zero_points.as_ref().map(|points| match self.layout {
            CodeLayout::Rows => self.number(points, (group, self.groups), scale_row, padded),
            CodeLayout::Gptq => self.number(points, (group * (rows * bits).div_ceil(32), 1), row, false),
            CodeLayout::Awq => self.number(points, (group * rows / 8 + row / 8, 1), nibble, false),
        });
        let zero = stored.map_or(1 << (bits - 1), |zero| (zero + self.zero_point_offset as i32) & ((1 << bits) - 1));
        let at = if self.layout == CodeLayout::Rows { scale_row * self.groups + group } else { group * rows + row };
        let scale = match self.scales_dtype {
            DType::Float32 => f32::from_le_bytes(self.scales.as_chunks().0[at]),
            DType::BFloat16 => bf16::from_le_bytes(self.scales.as_chunks().0[at]).to_f32(),
            _ => f16::from_le_bytes(self.scales.as_chunks().0[at]).to_f32(),
        };
        (code - zero) as f32 * scale
    }
}

fn compare(parts: &Parts, rows: Range<usize>, out: &[u8], dtype: DType) {
    let found = out.chunks_exact(dtype.bits() / 8);
    let step = found.len() / LOOKED_AT + 1;
    let elements = rows.flat_map(|row| (0..parts.cols).map(move |col| (row, col)));
    for ((row, col), found) in elements.zip(found).step_by(step) {
        check_element(found, parts.element(row, col), dtype, (row, col));
    }
}

/// The same as tensors, with the shapes of the sizes, or with others.
fn whole(program: &mut Program<'_>, parts: &Parts, lies: bool) {
    let tensor = |bytes: &[u8], dtype: DType, first: usize| {
        let elements = bytes.len() * 8 / dtype.bits().max(8);
        let second = elements.checked_div(first).unwrap_or(0);
        let shape = [first as i64, second as i64];
        Storage::of_bytes(bytes).and_then(|storage| Buffer::contiguous_at(storage, 0, dtype, &shape))
    };
    let by_rows = parts.layout == CodeLayout::Rows;
    let words = |bytes: &[u8]| (bytes.len() / 4).checked_div(parts.rows).unwrap_or(0);
    let lines = match parts.layout {
        CodeLayout::Rows => parts.rows,
        CodeLayout::Gptq => words(&parts.packed),
        CodeLayout::Awq => parts.cols,
    };
    let lines = if lies && program.one_in(4) { program.dim() as usize } else { lines };
    let Ok(packed) = tensor(&parts.packed, DType::Int32, lines) else { return };
    let Ok(scales) = tensor(&parts.scales, parts.scales_dtype, if by_rows { parts.rows } else { parts.groups }) else {
        return;
    };
    let scale_groups = scales.shape()[usize::from(by_rows)] as usize;
    let point_lines = |points: &[u8]| {
        if by_rows { (points.len() / 4).checked_div(parts.groups).unwrap_or(0) } else { parts.groups }
    };
    let zero_points = parts.zero_points.as_ref().map(|points| tensor(points, DType::Int32, point_lines(points)));
    let index = |index: &Vec<u8>| {
        let entries = [(index.len() / 4) as i64];
        Storage::of_bytes(index).and_then(|storage| Buffer::contiguous_at(storage, 0, DType::Int32, &entries))
    };
    let group_index = parts.group_index.as_ref().map(index);
    let (Ok(zero_points), Ok(group_index)) = (zero_points.transpose(), group_index.transpose()) else { return };
    let packed = PackedGroups {
        layout: parts.layout,
        bits: parts.bits,
        shape: [parts.rows as i64, parts.cols as i64],
        packed: &packed,
        scales: &scales,
        zero_points: zero_points.as_ref(),
        zero_point_offset: parts.zero_point_offset,
        group_index: group_index.as_ref(),
        group_size: Some(parts.group_size),
    };
    match dequantize_groups(&packed, DType::Float32, None, &uninterrupted) {
        // The scales determine the number of groups, independently of the other parts.
        Ok(_) if scale_groups != parts.groups => assert!(lies, "groups of parts that fit together"),
        Ok(made) => compare(parts, 0..parts.rows, made.bytes().unwrap_or_default(), DType::Float32),
        Err(error) => {
            check_message(&error.to_string());
            assert!(lies || parts.rows == 0 || parts.cols == 0, "the tensors fit together: {error}");
        }
    }
}
