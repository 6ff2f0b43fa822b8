//! The sizes of the parts, all checked before anything is read.

use std::ops::Range;

use super::{CodeLayout, Groups};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// How codes are packed into words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::quant) enum CodeForm {
    /// Contiguous; a code may begin in one word and end in the next.
    Dense,
    /// Whole codes in each word, its upper bits empty.
    Padded,
}

impl CodeForm {
    /// Words of a string of codes.
    fn words(self, codes: usize, bits: usize) -> Option<usize> {
        match self {
            Self::Dense => codes.checked_mul(bits).map(|bits| bits.div_ceil(32)),
            Self::Padded => Some(codes.div_ceil(32 / bits)),
        }
    }
}

/// The group of each column.
#[derive(Debug, Clone)]
pub(in crate::quant) enum Columns {
    /// Consecutive groups of this many columns.
    Consecutive(usize),
    /// Any group for each column, below the number of groups.
    Indexed(Vec<u32>),
}

/// A matrix whose parts have the expected sizes.
pub(super) struct MatrixPlan<'a> {
    pub(super) groups: Groups<'a>,
    pub(super) bits: usize,
    pub(super) form: CodeForm,
    /// Words of the codes of a row in the layout `Rows`.
    pub(super) row_words: usize,
    /// Rows of scales: that of the matrix, or one for all.
    pub(super) scale_rows: usize,
    pub(super) columns: Columns,
}

impl<'a> MatrixPlan<'a> {
    pub(super) fn new(groups: &Groups<'a>, rows: &Range<usize>, out: usize, dtype: DType) -> Result<Self> {
        let bits = groups.bits as usize;
        check_kind(groups)?;
        if rows.start > rows.end || rows.end > groups.rows {
            return argument(format!("rows {}..{} of a matrix of {} rows", rows.start, rows.end, groups.rows));
        }
        let of_index = |index: &[u8]| group_of_each(index, groups.cols, groups.groups);
        let columns = match groups.group_index {
            Some(index) => of_index(index)?,
            None => Columns::Consecutive(check_group_size(groups)?),
        };
        let scale_bytes = groups.scales_dtype.bits() / 8;
        let is_one = groups.layout == CodeLayout::Rows && groups.groups == 1 && groups.scales.len() == scale_bytes;
        let scale_rows = if is_one { 1 } else { groups.rows };
        let size = |counts: &[usize]| counts.iter().try_fold(1, |size: usize, count| size.checked_mul(*count));
        check_size(groups, "scales", groups.scales.len(), size(&[scale_rows, groups.groups, scale_bytes]))?;
        check_size(groups, "output", out, size(&[rows.end - rows.start, groups.cols, dtype.bits() / 8]))?;

        // Words of a row's codes, bytes of all of them, bytes of the zero points.
        let sizes = |form: CodeForm| {
            let row_words = form.words(groups.cols, bits);
            let (lines, across, zeros) = match groups.layout {
                CodeLayout::Rows => (row_words, groups.rows, form.words(scale_rows, bits)),
                CodeLayout::Gptq => (row_words, groups.rows, form.words(groups.rows, bits)),
                CodeLayout::Awq => (Some(groups.cols), groups.rows / 8, Some(groups.rows / 8)),
            };
            let packed = lines.and_then(|lines| size(&[lines, across, 4]));
            (row_words, packed, zeros.and_then(|words| size(&[words, groups.groups, 4])))
        };
        let fits = |form: &CodeForm| {
            let (_, packed, zeros) = sizes(*form);
            packed == Some(groups.packed.len()) && groups.zero_points.is_none_or(|points| zeros == Some(points.len()))
        };
        let forms = if groups.layout == CodeLayout::Rows {
            &[CodeForm::Dense, CodeForm::Padded][..]
        } else {
            &[CodeForm::Dense]
        };
        let form = forms.iter().copied().find(fits).unwrap_or(CodeForm::Dense);
        let (row_words, packed, zeros) = sizes(form);
        check_size(groups, "packed", groups.packed.len(), packed)?;
        if let Some(points) = groups.zero_points {
            check_size(groups, "zero_points", points.len(), zeros)?;
        }
        Ok(Self { groups: *groups, bits, form, row_words: row_words.unwrap_or(0), scale_rows, columns })
    }
}

fn argument<T>(message: String) -> Result<T> {
    Err(Error::Argument(message))
}

/// That these are bits, scales and an offset of the layout.
fn check_kind(groups: &Groups<'_>) -> Result<()> {
    let &Groups { layout, bits, rows, scales_dtype, zero_point_offset, .. } = groups;
    let (name, known): (_, &[u32]) = match layout {
        CodeLayout::Rows => ("rows", &[2, 3, 4, 5, 6, 7, 8]),
        CodeLayout::Gptq => ("gptq", &[2, 3, 4, 8]),
        CodeLayout::Awq => ("awq", &[4]),
    };
    if !known.contains(&bits) {
        return argument(format!("the layout {name:?} has no codes of {bits} bits; it has those of {known:?}"));
    }
    if layout == CodeLayout::Awq && !rows.is_multiple_of(8) {
        return argument(format!(
            "the layout \"awq\" packs eight rows into a word; {rows} rows are not a multiple of that"
        ));
    }
    if zero_point_offset > u32::from(layout == CodeLayout::Gptq) {
        return argument(format!(
            "zero_point_offset is 0, or 1 in the layout \"gptq\"; not {zero_point_offset} in {name:?}"
        ));
    }
    if !matches!(scales_dtype, DType::Float32 | DType::Float16 | DType::BFloat16) {
        return argument(format!("the scales of groups are float32, float16 or bfloat16, not {scales_dtype}"));
    }
    Ok(())
}

fn check_size(groups: &Groups<'_>, what: &str, actual: usize, expected: Option<usize>) -> Result<()> {
    if expected == Some(actual) {
        return Ok(());
    }
    let &Groups { bits, rows, cols, groups, .. } = groups;
    let expected = expected.map_or_else(|| "too many bytes to count".into(), |size| format!("{size} bytes"));
    argument(format!(
        "{what} of a matrix of {rows} x {cols} codes of {bits} bits in {groups} groups should have {expected}, and has {actual} bytes"
    ))
}

/// The columns of a group, where the groups cover the columns.
fn check_group_size(groups: &Groups<'_>) -> Result<usize> {
    let &Groups { cols, groups: count, group_size: size, .. } = groups;
    if size == 0 {
        return argument("a group of 0 columns is empty".into());
    }
    if cols != 0 && cols.div_ceil(size) != count {
        return argument(format!(
            "{cols} columns in groups of {size} have {} groups, not {count}",
            cols.div_ceil(size)
        ));
    }
    Ok(size)
}

/// The groups that an index names, which are consecutive ones more often than not.
fn group_of_each(index: &[u8], cols: usize, groups: usize) -> Result<Columns> {
    let (index, rest) = index.as_chunks::<4>();
    if index.len() != cols || !rest.is_empty() {
        return argument(format!("group_index has {} entries; the matrix has {cols} columns", index.len()));
    }
    let named = |(col, group): (usize, &[u8; 4])| {
        let group = i32::from_le_bytes(*group);
        let named = u32::try_from(group).ok().filter(|&group| (group as usize) < groups);
        named.ok_or_else(|| {
            Error::Argument(format!(
                "group_index says that column {col} is of group {group}; there are {groups} groups"
            ))
        })
    };
    let of_column = index.iter().enumerate().map(named).collect::<Result<Vec<u32>>>()?;
    let size = of_column.iter().position(|&group| group != 0).unwrap_or(cols).max(1);
    let is_consecutive = of_column.iter().enumerate().all(|(col, &group)| col / size == group as usize);
    Ok(if is_consecutive { Columns::Consecutive(size) } else { Columns::Indexed(of_column) })
}
