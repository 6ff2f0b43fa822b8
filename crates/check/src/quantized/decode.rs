//! The values of a quantized weight: its parts, combined as the layout describes, and passed to the kernels. Rows are decoded separately, so the
//! whole weight need not be in memory.

use std::ops::Range;

use max_weights::buffer::{self, Buffer, IndexPart, PackedCodes, PackedGroups};
use max_weights::checkpoint::{Checkpoint, Decode, Grain};
use max_weights::dtype::DType;
use max_weights::memory::{Block, Exclusive};
use max_weights::quant::{self, After};
use max_weights::text::escape;
use max_weights::workers::Interrupt;
use max_weights::{Error, Result};

use super::layout::{ScaleRule, WeightLayout};
use super::parts::TensorRole;

/// What bitsandbytes divides int8 by is 127, as a factor.
const ROW_FACTOR: f32 = 7.874_016e-3;
/// Rows of integers in words are cut where those of all bits have whole words.
const WORD: u64 = 32;
/// Cuts of four-bit elements fall on whole bytes of any stored dtype.
const ELEMENTS: u64 = 128;

/// Rows of one matrix of a weight; `None` for all of the weight.
type MatrixRows = Option<(u64, Range<u64>)>;

/// A quantized weight that can be decoded: its layout, and the numbers of its parts.
#[derive(Debug, Clone)]
pub struct WeightDecoder {
    /// What was decided of it.
    pub layout: WeightLayout,
    parts: Vec<(TensorRole, usize)>,
    /// What its elements become.
    pub dtype: DType,
}

impl WeightDecoder {
    /// The decoder of a weight of these parts, by their numbers.
    ///
    /// # Errors
    /// A dtype that quantized weights do not decode to.
    pub fn new(layout: WeightLayout, parts: impl Iterator<Item = (TensorRole, usize)>, dtype: DType) -> Self {
        Self { layout, parts: parts.collect(), dtype }
    }

    /// All elements, in the shape of the weight; `out` has that in which it is decoded, [`WeightLayout::matrix`].
    ///
    /// # Errors
    /// As of [`Decode::rows`]; an `out` that does not fit.
    pub fn all(
        &self,
        checkpoint: &Checkpoint,
        out: Option<&mut Exclusive<Buffer>>,
        interrupt: Interrupt<'_>,
    ) -> Result<Buffer> {
        let decoded = self.piece(checkpoint, None, out, interrupt)?;
        decoded.view(self.dtype, Some(&signed(&self.layout.shape)))
    }

    fn piece(
        &self,
        checkpoint: &Checkpoint,
        piece: MatrixRows,
        out: Option<&mut Exclusive<Buffer>>,
        interrupt: Interrupt<'_>,
    ) -> Result<Buffer> {
        let work =
            WeightDecoding { layout: &self.layout, parts: &self.parts, dtype: self.dtype, checkpoint, interrupt };
        match self.layout.way {
            ScaleRule::Blocks | ScaleRule::Spread | ScaleRule::Multiplied | ScaleRule::Divided => {
                work.blocks(piece, out)
            }
            ScaleRule::Rows | ScaleRule::Gptq | ScaleRule::Awq => work.groups(piece, out),
            ScaleRule::Nibbles | ScaleRule::Bytes => work.signed(piece, out),
            ScaleRule::Pairs => work.pairs(piece, out),
            ScaleRule::Nf4 | ScaleRule::Fp4 => work.codes(piece, out),
            ScaleRule::Int8 => work.rows_of_bytes(piece, out),
        }
    }
}

impl Decode for WeightDecoder {
    fn grain(&self) -> Grain {
        let layout = &self.layout;
        let [.., rows, row] = *layout.matrix.as_slice() else {
            return Grain { row: layout.shape.iter().product(), rows: 1, align: 1 };
        };
        let grain = |align: u64| Grain { row, rows, align };
        match layout.way {
            ScaleRule::Blocks | ScaleRule::Multiplied | ScaleRule::Divided => grain(layout.step[0]),
            ScaleRule::Spread | ScaleRule::Nibbles | ScaleRule::Bytes | ScaleRule::Int8 => grain(1),
            ScaleRule::Pairs => grain(2),
            // The number of words for all rows determines how zero points are packed.
            ScaleRule::Rows if self.has(TensorRole::ZeroPoint) && !WORD.is_multiple_of(layout.bits) => {
                grain(rows.max(1))
            }
            ScaleRule::Rows | ScaleRule::Gptq | ScaleRule::Awq => grain(WORD),
            ScaleRule::Nf4 | ScaleRule::Fp4 => {
                let elements = layout.shape.iter().product::<u64>();
                let row = self.unit();
                Grain { row, rows: elements.div_ceil(row).max(1), align: 1 }
            }
        }
    }

    fn rows(&self, checkpoint: &Checkpoint, matrix: u64, rows: Range<u64>, interrupt: Interrupt<'_>) -> Result<Buffer> {
        self.piece(checkpoint, Some((matrix, rows)), None, interrupt)
    }
}

impl WeightDecoder {
    fn has(&self, part: TensorRole) -> bool {
        self.parts.iter().any(|(own, _)| *own == part)
    }

    /// Elements of four bits that share whole scales, and whole nested scales.
    fn unit(&self) -> u64 {
        unit(&self.layout)
    }
}

fn unit(layout: &WeightLayout) -> u64 {
    let nested = layout.nested.map_or(1, |(nested, _)| nested);
    layout.block[1].max(1).saturating_mul(nested).saturating_mul(ELEMENTS)
}

/// The decoding of one weight, or of some rows.
struct WeightDecoding<'a> {
    layout: &'a WeightLayout,
    parts: &'a [(TensorRole, usize)],
    dtype: DType,
    checkpoint: &'a Checkpoint,
    interrupt: Interrupt<'a>,
}

impl WeightDecoding<'_> {
    /// The number of the tensor of a role; that of the scales which the layout names.
    fn find(&self, role: &str) -> Option<usize> {
        let own = self.parts.iter().filter(|(part, _)| part.role() == role);
        let of_layout = own.clone().find(|(part, _)| *part == self.layout.scales);
        of_layout.or_else(|| own.clone().next()).map(|(_, number)| *number)
    }

    fn number(&self, role: &str) -> Result<usize> {
        self.find(role).ok_or_else(|| {
            Error::Argument(format!("a weight of the scheme {} has no {role}", escape(self.layout.scheme)))
        })
    }

    fn whole(&self, role: &str) -> Result<Buffer> {
        self.checkpoint.tensor(self.number(role)?)
    }

    /// Rows of a part, of which each matrix has `rows`; the whole part without a range.
    fn rows(&self, role: &str, (matrices, rows): (u64, u64), piece: &MatrixRows) -> Result<Buffer> {
        let number = self.number(role)?;
        let Some((matrix, range)) = piece else { return self.checkpoint.tensor(number) };
        let dims = self.checkpoint.catalog().table().get(number).shape;
        let slice = |start: u64| IndexPart::Slice {
            start: Some((start + range.start) as i64),
            stop: Some((start + range.end) as i64),
            step: 1,
        };
        // The axes before that of the rows say which matrix.
        let front = |axis: usize| dims.iter().take(axis).product::<u64>();
        if let Some(axis) = (0..dims.len()).find(|axis| front(*axis) == matrices && dims.get(*axis) == Some(&rows)) {
            let (mut rest, mut expression) = (*matrix, vec![slice(0)]);
            for dim in dims.iter().take(axis).rev() {
                expression.push(IndexPart::At((rest % dim) as i64));
                rest /= dim;
            }
            expression.reverse();
            return self.checkpoint.part(number, &expression);
        }
        let start = matrix * rows;
        if dims.first() == Some(&matrices.saturating_mul(rows)) {
            return self.checkpoint.part(number, &[slice(start)]);
        }
        let whole = self.checkpoint.tensor(number)?.contiguous(self.interrupt)?;
        let (all, per) = (matrices.saturating_mul(rows).max(1), whole.elements() as u64);
        whole.view(whole.dtype(), Some(&signed(&[all, per / all])))?.index(&[slice(start)])
    }

    /// Columns of a matrix.
    fn columns(&self, role: &str, columns: Option<Range<u64>>) -> Result<Buffer> {
        let number = self.number(role)?;
        let Some(columns) = columns else { return self.checkpoint.tensor(number) };
        let all = IndexPart::Slice { start: None, stop: None, step: 1 };
        let some = IndexPart::Slice { start: Some(columns.start as i64), stop: Some(columns.end as i64), step: 1 };
        self.checkpoint.part(number, &[all, some])
    }

    /// How many matrices there are, and how many rows and columns each has.
    fn sizes(&self) -> Result<(u64, u64, u64)> {
        match self.layout.matrix.as_slice() {
            [outer @ .., rows, columns] => Ok((outer.iter().product(), *rows, *columns)),
            _ => Err(Error::Argument(format!("a weight of the scheme {} is no matrix", self.layout.scheme))),
        }
    }

    /// Elements times the scales of their blocks.
    fn blocks(&self, piece: MatrixRows, out: Option<&mut Exclusive<Buffer>>) -> Result<Buffer> {
        let layout = self.layout;
        let (matrices, rows, columns) = self.sizes()?;
        let data = self.rows("packed", (matrices, rows), &piece)?;
        let shape = match &piece {
            None => layout.matrix.clone(),
            Some((_, range)) => vec![range.end - range.start, columns],
        };
        let dtype = layout.dtype.unwrap_or(data.dtype());
        let is_unchanged = layout.dtype.is_none() && data.shape() == &*signed(&shape);
        let data =
            if is_unchanged { data } else { data.contiguous(self.interrupt)?.view(dtype, Some(&signed(&shape)))? };
        let scales = self.scales((matrices, rows), &piece)?;
        let block = (layout.step[0] as usize, layout.step[1] as usize);
        buffer::scale_blocks(&data, &scales, block, (self.dtype, false), out, self.interrupt)
    }

    /// The scales of the blocks that a weight is decoded in.
    fn scales(&self, (matrices, rows): (u64, u64), piece: &MatrixRows) -> Result<Buffer> {
        let layout = self.layout;
        let (step, outer) = (layout.step[0].max(1), layout.matrix.len().saturating_sub(2));
        let of_piece = match piece {
            None => rows,
            Some((_, range)) => range.end - range.start,
        };
        if layout.way == ScaleRule::Spread {
            let numbers = self.floats(&self.whole("scales")?)?;
            let per = of_piece.div_ceil(step) as usize;
            let scale = |matrix: usize| numbers.get(if numbers.len() > 1 { matrix } else { 0 }).copied();
            let of = match piece {
                None => 0..matrices as usize,
                Some((matrix, _)) => *matrix as usize..*matrix as usize + 1,
            };
            let spread = of.flat_map(|matrix| std::iter::repeat_n(scale(matrix).unwrap_or(f32::NAN), per));
            let front = layout.matrix.iter().take(if piece.is_none() { outer } else { 0 });
            let shape: Vec<u64> = front.copied().chain([per as u64, 1]).collect();
            return of_floats(spread.collect(), &shape);
        }
        let of_blocks = piece.as_ref().map(|(matrix, range)| (*matrix, range.start / step..range.end.div_ceil(step)));
        let mut scales = self.rows("scales", (matrices, rows.div_ceil(step)), &of_blocks)?;
        if scales.dtype() == DType::UInt8 {
            scales = scales.contiguous(self.interrupt)?.view(DType::Float8E8M0Fnu, None)?; // bytes are exponents
        }
        match (&of_blocks, &layout.grid) {
            (None, Some(grid)) => {
                scales = scales.contiguous(self.interrupt)?.view(scales.dtype(), Some(&signed(grid)))?;
            }
            (None, None) => {}
            (Some((_, range)), _) => {
                let count = range.end - range.start;
                let shape = [count, scales.elements() as u64 / count.max(1)];
                scales = scales.contiguous(self.interrupt)?.view(scales.dtype(), Some(&signed(&shape)))?;
            }
        }
        if layout.way == ScaleRule::Blocks {
            return Ok(scales);
        }
        // As the libraries do it: the two scales make one, in float32, by which elements are multiplied.
        let numbers = self.floats(&scales)?;
        let of_all = self.floats(&self.whole("global_scale")?)?;
        let per = if piece.is_none() { (numbers.len() / (matrices.max(1) as usize)).max(1) } else { usize::MAX };
        let first = piece.as_ref().map_or(0, |(matrix, _)| *matrix as usize);
        let of =
            |at: usize| of_all.get(if of_all.len() > 1 { first + at / per } else { 0 }).copied().unwrap_or(f32::NAN);
        let made = numbers
            .iter()
            .enumerate()
            .map(|(at, scale)| if layout.way == ScaleRule::Divided { scale / of(at) } else { scale * of(at) });
        let shape: Vec<u64> = scales.shape().iter().map(|dim| *dim as u64).collect();
        of_floats(made.collect(), &shape)
    }

    /// Integers in words, with a scale for each group of inputs.
    fn groups(&self, piece: MatrixRows, out: Option<&mut Exclusive<Buffer>>) -> Result<Buffer> {
        let layout = self.layout;
        let (_, rows, columns) = self.sizes()?;
        let range = piece.as_ref().map(|(_, range)| range.clone());
        let of_rows = range.clone().unwrap_or(0..rows);
        let words = |range: Range<u64>| range.start * layout.bits / WORD..(range.end * layout.bits).div_ceil(WORD);
        let of_words = range.clone().map(words);
        let has_zeros = self.find("zero_points").is_some();
        let (kind, packed, scales, zeros) = match layout.way {
            ScaleRule::Rows => {
                let packed = self.rows("packed", (1, rows), &piece)?;
                let of_all = self.whole("scales")?;
                let scales = if of_all.elements() > 1 && range.is_some() {
                    self.rows("scales", (1, rows), &piece)?
                } else {
                    of_all
                };
                let number = self.find("zero_points").map(|number| match &of_words {
                    // Of all rows there are as many words as their number says, which may have unused bits.
                    Some(words) if of_rows != (0..rows) => {
                        let some =
                            IndexPart::Slice { start: Some(words.start as i64), stop: Some(words.end as i64), step: 1 };
                        self.checkpoint.part(number, &[some])
                    }
                    _ => self.checkpoint.tensor(number),
                });
                (quant::CodeLayout::Rows, packed, scales, number.transpose()?)
            }
            ScaleRule::Gptq => {
                let packed = self.columns("packed", range.clone())?;
                let zeros = has_zeros.then(|| self.columns("zero_points", of_words)).transpose()?;
                (quant::CodeLayout::Gptq, packed, self.columns("scales", range.clone())?, zeros)
            }
            _ => {
                let packed = self.columns("packed", of_words.clone())?;
                let zeros = has_zeros.then(|| self.columns("zero_points", of_words)).transpose()?;
                (quant::CodeLayout::Awq, packed, self.columns("scales", range.clone())?, zeros)
            }
        };
        let scales = if scales.shape().is_empty() {
            scales.contiguous(self.interrupt)?.view(scales.dtype(), Some(&[1]))?
        } else {
            scales
        };
        let index = if layout.is_indexed {
            Some(self.whole("group_index")?.astype(DType::Int32, false, self.interrupt)?)
        } else {
            None
        };
        let parts = PackedGroups {
            layout: kind,
            bits: layout.bits as u32,
            shape: [(of_rows.end - of_rows.start) as i64, columns as i64],
            packed: &packed,
            scales: &scales,
            zero_points: zeros.as_ref(),
            zero_point_offset: layout.zero_point_offset,
            group_index: index.as_ref(),
            group_size: Some(layout.block[1] as usize),
        };
        buffer::dequantize_groups(&parts, self.dtype, out, self.interrupt)
    }

    /// Signed integers in bytes, as words of rows whose integers have no sign.
    fn signed(&self, piece: MatrixRows, out: Option<&mut Exclusive<Buffer>>) -> Result<Buffer> {
        let layout = self.layout;
        let (_, rows, columns) = self.sizes()?;
        let of_rows = piece.as_ref().map_or(0..rows, |(_, range)| range.clone());
        let count = of_rows.end - of_rows.start;
        let flip = if layout.way == ScaleRule::Nibbles { 0x88 } else { 0x80 };
        let numbers = self.floats(&self.whole("scales")?)?;
        // One for all rows, or some for each.
        let per = (numbers.len() / (rows.max(1) as usize)).max(1);
        let is_of_rows = numbers.len() / per > 1;
        let of_row = |row: u64| if is_of_rows { row as usize * per } else { 0 };
        let spread = of_rows.clone().flat_map(|row| (0..per).map(move |group| (row, group)));
        let scales = spread.map(|(row, group)| numbers.get(of_row(row) + group).copied().unwrap_or(f32::NAN));
        let scales = of_floats(scales.collect(), &[count, per as u64])?;
        let zeros = if layout.way == ScaleRule::Bytes {
            let points = self.whole("zero_points")?.contiguous(self.interrupt)?;
            let points = points.bytes().unwrap_or_default();
            let at = |row: u64, group: usize| points.get(of_row(row) + group).copied().unwrap_or_default();
            let along: Vec<u8> = (0..per).flat_map(|group| of_rows.clone().map(move |row| at(row, group))).collect();
            let words = words_of(&along, count as usize, flip)?;
            let whole = count.div_ceil(4) as usize;
            // A row of words for each group becomes a column.
            let words: Vec<&[u8]> = words.chunks_exact(4).collect();
            let turned = (0..whole).flat_map(|word| (0..per).map(move |group| group * whole + word));
            let turned: Vec<u8> = turned.filter_map(|at| words.get(at)).flat_map(|word| word.iter().copied()).collect();
            Some(of_bytes(&turned, DType::Int32, &[whole as u64, per as u64])?)
        } else {
            None
        };
        let packed = self.rows("packed", (1, rows), &piece)?.contiguous(self.interrupt)?;
        let packed = if packed.storage().is_mapped() { packed.copy(self.interrupt)? } else { packed };
        let row = columns * layout.bits / 8;
        let words = words_of(packed.bytes().unwrap_or_default(), row as usize, flip)?;
        let packed = of_bytes(&words, DType::Int32, &[count, row.div_ceil(4)])?;
        let parts = PackedGroups {
            layout: quant::CodeLayout::Rows,
            bits: layout.bits as u32,
            shape: [count as i64, columns as i64],
            packed: &packed,
            scales: &scales,
            zero_points: zeros.as_ref(),
            zero_point_offset: 0,
            group_index: None,
            group_size: Some(layout.block[1] as usize),
        };
        buffer::dequantize_groups(&parts, self.dtype, out, self.interrupt)
    }

    /// Two outputs in a byte, signed integers of four bits: they become two inputs in a byte, without signs.
    fn pairs(&self, piece: MatrixRows, out: Option<&mut Exclusive<Buffer>>) -> Result<Buffer> {
        let layout = self.layout;
        let (_, rows, inputs) = self.sizes()?;
        let of_rows = piece.as_ref().map_or(0..rows, |(_, range)| range.clone());
        let count = of_rows.end - of_rows.start;
        let of_pairs = piece.as_ref().map(|(matrix, range)| (*matrix, range.start / 2..range.end.div_ceil(2)));
        let packed = self.rows("packed", (1, rows / 2), &of_pairs)?.contiguous(self.interrupt)?;
        let packed = if packed.storage().is_mapped() { packed.copy(self.interrupt)? } else { packed };
        let (inputs_at, row) = (inputs.max(1) as usize, inputs.div_ceil(8) as usize * 4); // rows end on a word
        let mut unpacked = vec![0x88_u8; row.saturating_mul(count as usize)];
        for (pair, bytes) in packed.bytes().unwrap_or_default().chunks_exact(inputs_at).enumerate() {
            for (of_pair, shift) in [(0, 0), (1, 4)] {
                let start = (2 * pair + of_pair) * row;
                let Some(out) = unpacked.get_mut(start..start + row) else { continue };
                for (out, two) in out.iter_mut().zip(bytes.chunks(2)) {
                    let half = |at: usize| two.get(at).map_or(0, |byte| byte >> shift & 0x0F);
                    *out = (half(0) | half(1) << 4) ^ 0x88;
                }
            }
        }
        let packed = of_bytes(&unpacked, DType::Int32, &[count, row as u64 / 4])?;
        let scales = self.rows("scales", (1, rows), &piece)?.contiguous(self.interrupt)?;
        let groups = scales.elements() as u64 / count.max(1);
        let groups = if count == 0 { layout.grid.as_ref().map_or(1, |grid| grid[1]) } else { groups };
        let scales = scales.view(scales.dtype(), Some(&signed(&[count, groups])))?;
        let parts = PackedGroups {
            layout: quant::CodeLayout::Rows,
            bits: layout.bits as u32,
            shape: [count as i64, inputs as i64],
            packed: &packed,
            scales: &scales,
            zero_points: None,
            zero_point_offset: 0,
            group_index: None,
            group_size: Some(layout.block[1] as usize),
        };
        buffer::dequantize_groups(&parts, self.dtype, out, self.interrupt)
    }

    /// Codes of bitsandbytes; their values come from its fixed table, not from that in the file.
    fn codes(&self, piece: MatrixRows, out: Option<&mut Exclusive<Buffer>>) -> Result<Buffer> {
        let layout = self.layout;
        let elements = layout.shape.iter().product::<u64>();
        let (unit, block) = (unit(layout), layout.block[1].max(1));
        let of = piece
            .as_ref()
            .map(|(_, rows)| rows.start.saturating_mul(unit)..rows.end.saturating_mul(unit).min(elements));
        let packed = self.packed_codes(of.as_ref())?;
        let of_scales = of.as_ref().map(|of| of.start / block..of.end.div_ceil(block));
        let mut scales = self.flat("scales", of_scales.as_ref())?;
        if let Some((nested, offset)) = layout.nested {
            let of_nested = of_scales.map(|of| of.start / nested..of.end.div_ceil(nested));
            let nested_scales = self.flat("nested_scales", of_nested.as_ref())?;
            let parts = PackedCodes {
                bits: 8,
                shape: scales.shape(),
                packed: &scales,
                values: &self.whole("nested_codebook")?,
                scales: &nested_scales.astype(DType::Float32, false, self.interrupt)?,
                block: nested as usize,
                after: After::Plus(offset),
            };
            scales = buffer::dequantize_codebook(&parts, DType::Float32, None, self.interrupt)?;
        }
        let table = layout.way.table().unwrap_or_default();
        let shape = match &of {
            None => signed(&layout.shape),
            Some(of) => signed(&[of.end - of.start]),
        };
        let parts = PackedCodes {
            bits: layout.bits as u32,
            shape: &shape,
            packed: &packed,
            values: &of_floats(table, &[16])?,
            scales: &scales.astype(DType::Float32, false, self.interrupt)?,
            block: block as usize,
            after: After::Nothing,
        };
        buffer::dequantize_codebook(&parts, self.dtype, out, self.interrupt)
    }

    /// The codes of some elements, two in a byte of any stored dtype.
    fn packed_codes(&self, of: Option<&Range<u64>>) -> Result<Buffer> {
        let Some(of) = of else { return self.whole("packed") };
        let number = self.number("packed")?;
        let info = self.checkpoint.catalog().table().get(number);
        let all: u64 = info.shape.iter().product();
        let item = (info.bytes() / all.max(1)).max(1);
        let some = of.start / 2 / item..of.end.div_ceil(2).div_ceil(item).min(all);
        self.flat("packed", Some(&some))
    }

    /// Elements of a part in one row.
    fn flat(&self, role: &str, of: Option<&Range<u64>>) -> Result<Buffer> {
        let Some(of) = of else { return self.whole(role) };
        let number = self.number(role)?;
        let all: u64 = self.checkpoint.catalog().table().get(number).shape.iter().product();
        let found = self.rows(role, (1, all), &Some((0, of.clone())))?.contiguous(self.interrupt)?;
        found.view(found.dtype(), Some(&signed(&[of.end - of.start])))
    }

    /// Int8 of bitsandbytes: rows with the largest magnitude of each.
    fn rows_of_bytes(&self, piece: MatrixRows, out: Option<&mut Exclusive<Buffer>>) -> Result<Buffer> {
        let (_, rows, columns) = self.sizes()?;
        let count = piece.as_ref().map_or(rows, |(_, range)| range.end - range.start);
        let table = (0..=127_i16).chain(-128..=-1).map(f32::from).collect();
        let parts = PackedCodes {
            bits: self.layout.bits as u32,
            shape: &signed(&[count, columns]),
            packed: &self.rows("packed", (1, rows), &piece)?,
            values: &of_floats(table, &[256])?,
            scales: &self.rows("scales", (1, rows), &piece)?.astype(DType::Float32, false, self.interrupt)?,
            block: self.layout.block[1].max(1) as usize,
            after: After::Times(ROW_FACTOR),
        };
        buffer::dequantize_codebook(&parts, self.dtype, out, self.interrupt)
    }

    /// The elements of a small tensor as float32.
    fn floats(&self, tensor: &Buffer) -> Result<Vec<f32>> {
        let floats = tensor.astype(DType::Float32, false, self.interrupt)?;
        let floats = if floats.storage().is_mapped() { floats.copy(self.interrupt)? } else { floats };
        let floats = floats.contiguous(self.interrupt)?;
        let bytes = floats.bytes().unwrap_or_default();
        Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect())
    }
}

fn signed(dims: &[u64]) -> Vec<i64> {
    dims.iter().map(|dim| *dim as i64).collect()
}

fn of_bytes(bytes: &[u8], dtype: DType, shape: &[u64]) -> Result<Buffer> {
    let mut block = Block::any(bytes.len())?;
    block.as_mut_slice().copy_from_slice(bytes);
    Buffer::contiguous_at(block.freeze(), 0, dtype, &signed(shape))
}

fn of_floats(values: Vec<f32>, shape: &[u64]) -> Result<Buffer> {
    let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_ne_bytes).collect();
    of_bytes(&bytes, DType::Float32, shape)
}

/// Rows of bytes with the bits of a sign turned over, each filled up to whole words.
fn words_of(bytes: &[u8], row: usize, flip: u8) -> Result<Vec<u8>> {
    let whole = row.next_multiple_of(4);
    let mut words = Vec::new();
    words
        .try_reserve_exact(bytes.len() / row.max(1) * whole)
        .map_err(|_| Error::Argument("no memory for a weight".into()))?;
    for row in bytes.chunks_exact(row.max(1)) {
        words.extend(row.iter().map(|byte| byte ^ flip));
        words.resize(words.len().next_multiple_of(4), 0);
    }
    Ok(words)
}
