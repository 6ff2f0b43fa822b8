//! Dequantization of packed integers with a scale for each group, whole matrices on all cores.

use super::convert::STREAM_FROM;
use super::elements::{PART, check_out};
use super::{Buffer, checked_size};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::{self, Exclusive};
use crate::quant::{CodeLayout, Groups, dequantize_group_rows};
use crate::workers::{Interrupt, WORKERS};

/// Parts are a multiple of this many rows: the columns of packed matrices are read in whole cache lines, and more.
const ROWS: usize = 256;

/// The tensors of a quantized matrix; [`Groups`] describes them.
#[derive(Debug, Clone, Copy)]
pub struct PackedGroups<'a> {
    /// How the codes are packed.
    pub layout: CodeLayout,
    /// Bits of a code.
    pub bits: u32,
    /// Rows (outputs) and columns (inputs) of the result.
    pub shape: [i64; 2],
    /// int32: the words of the codes.
    pub packed: &'a Buffer,
    /// One for each row and group (`Layout::Rows`), or each group and row.
    pub scales: &'a Buffer,
    /// int32: the words of the zero points.
    pub zero_points: Option<&'a Buffer>,
    /// What is added to a zero point.
    pub zero_point_offset: u32,
    /// int32: the group of each column.
    pub group_index: Option<&'a Buffer>,
    /// Columns of a group; derived from the shapes if all groups are equal.
    pub group_size: Option<usize>,
}

/// `(code - zero point) * scale`, computed in f32 and rounded once to `dtype`, in new memory or written to `out`.
pub fn dequantize_groups(
    parts: &PackedGroups<'_>,
    dtype: DType,
    out: Option<&mut Exclusive<Buffer>>,
    interrupt: Interrupt<'_>,
) -> Result<Buffer> {
    checked_size(dtype, &parts.shape)?;
    let [rows, cols] = parts.shape.map(|dim| dim as usize);
    let groups = parts.groups()?;
    let group_size = parts.group_size(cols, groups)?;
    parts.check_words()?;
    // A copy reports a truncated file as an error, and has no strides.
    let own = |tensor: &Buffer| {
        if tensor.storage.is_mapped() { tensor.copy(interrupt) } else { tensor.contiguous(interrupt) }
    };
    let maybe_own = |tensor: Option<&Buffer>| tensor.map(own).transpose();
    let (packed, scales) = (own(parts.packed)?, own(parts.scales)?);
    let (zero_points, group_index) = (maybe_own(parts.zero_points)?, maybe_own(parts.group_index)?);
    let matrix = Groups {
        layout: parts.layout,
        bits: parts.bits,
        rows,
        cols,
        packed: bytes(&packed)?,
        scales: bytes(&scales)?,
        scales_dtype: scales.dtype,
        zero_points: zero_points.as_ref().map(bytes).transpose()?,
        zero_point_offset: parts.zero_point_offset,
        groups,
        group_size,
        group_index: group_index.as_ref().map(bytes).transpose()?,
    };
    // Checks the sizes of all parts, even if there is no row to decode.
    dequantize_group_rows(&matrix, 0..0, &mut [], dtype, false)?;
    let fill = |out: &mut [u8]| {
        // For an empty matrix, the other side may be so long that it overflows.
        if out.is_empty() {
            return Ok(());
        }
        let row_bytes = out.len() / rows;
        let stream = out.len() >= STREAM_FROM;
        let per_part = (PART / row_bytes).max(1).next_multiple_of(ROWS);
        let ranges = (0..rows).step_by(per_part).map(|start| start..(start + per_part).min(rows));
        let shares = memory::parts(out, ranges.clone().map(|range| range.len() * row_bytes));
        WORKERS.each(ranges.zip(shares).collect(), interrupt, |(range, out), _| {
            Ok(dequantize_group_rows(&matrix, range, out, dtype, stream)?)
        })
    };
    if let Some(out) = out {
        let sources: Vec<&Buffer> = [Some(parts.packed), Some(parts.scales), parts.zero_points, parts.group_index]
            .into_iter()
            .flatten()
            .collect();
        fill(check_out(out, dtype, &parts.shape, &sources)?)?;
        return Ok(out.get().clone());
    }
    Buffer::filled(dtype, &parts.shape, fill)
}

/// The bytes of a contiguous tensor.
pub(super) fn bytes(tensor: &Buffer) -> Result<&[u8]> {
    tensor.storage.slice(tensor.offset, tensor.size())
}

impl PackedGroups<'_> {
    /// The number of groups in a row.
    fn groups(&self) -> Result<usize> {
        let [rows, _] = self.shape;
        let groups = match (self.layout, &*self.scales.shape) {
            (CodeLayout::Rows, [] | [1] | [1, 1]) => Some(1),
            (CodeLayout::Rows, &[lines, groups]) if lines == rows => Some(groups),
            (CodeLayout::Gptq | CodeLayout::Awq, &[groups, lines]) if lines == rows => Some(groups),
            _ => None,
        };
        let expected = if self.layout == CodeLayout::Rows { "[rows, groups]" } else { "[groups, rows]" };
        groups.map(|groups| groups as usize).ok_or_else(|| {
            let found = &self.scales.shape;
            Error::Argument(format!("scales have shape {found:?}; for {rows} rows it is {expected}"))
        })
    }

    /// The columns of a group, if there is no index.
    fn group_size(&self, cols: usize, groups: usize) -> Result<usize> {
        match (self.group_size, self.group_index) {
            (Some(size), _) => Ok(size),
            (None, Some(_)) => Ok(1),
            (None, None) if cols == 0 => Ok(1),
            (None, None) if groups != 0 && cols.is_multiple_of(groups) => Ok(cols / groups),
            (None, None) => Err(Error::Argument(format!(
                "{cols} columns are not a multiple of {groups} groups: say the group_size, the last group of a row is smaller"
            ))),
        }
    }

    /// Checks the dtype and width of the words; their total number is checked when they are read.
    fn check_words(&self) -> Result<()> {
        let [rows, cols] = self.shape;
        let groups = self.groups()? as i64;
        let wrong = |what: &str, tensor: &Buffer, expected: &str| {
            let (dtype, found) = (tensor.dtype, &tensor.shape);
            Err(Error::Argument(format!("{what} should be {expected}; it is {dtype} of shape {found:?}")))
        };
        let is_words = |tensor: &Buffer| matches!(tensor.dtype, DType::Int32 | DType::UInt32);
        let fits = match (self.layout, &*self.packed.shape) {
            (CodeLayout::Rows, &[lines, _]) => lines == rows,
            (CodeLayout::Gptq, &[_, across]) => across == rows,
            (CodeLayout::Awq, &[lines, across]) => lines == cols && across == rows / 8,
            _ => false,
        };
        if !fits || !is_words(self.packed) {
            let expected = match self.layout {
                CodeLayout::Rows => format!("int32 of shape [{rows}, words]"),
                CodeLayout::Gptq => format!("int32 of shape [words, {rows}]"),
                CodeLayout::Awq => format!("int32 of shape [{cols}, {}]", rows / 8),
            };
            return wrong("packed", self.packed, &expected);
        }
        if let Some(points) = self.zero_points {
            let fits = match (self.layout, &*points.shape) {
                (CodeLayout::Rows, &[_, across]) => across == groups,
                (CodeLayout::Gptq | CodeLayout::Awq, &[lines, _]) => lines == groups,
                _ => false,
            };
            if !fits || !is_words(points) {
                let expected = if self.layout == CodeLayout::Rows { "[words, groups]" } else { "[groups, words]" };
                return wrong("zero_points", points, &format!("int32 of shape {expected} for {groups} groups"));
            }
        }
        if let Some(index) = self.group_index
            && (index.dtype != DType::Int32 || *index.shape != [cols])
        {
            return wrong("group_index", index, &format!("int32 of shape [{cols}]"));
        }
        Ok(())
    }
}
