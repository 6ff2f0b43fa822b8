//! Weights of a distributed checkpoint: each is composed of boxes, one per stored piece with an item that has its elements.

use super::placement::{Codec, FileSegment, Inflate, Placement, Swap, Transform};
use super::recipe::{Recipe, RecipePiece};
use crate::checkpoint::{Catalog, FolderPieces, PiecePlace, PlacedPiece};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::{Element, Span, extent};

impl Catalog {
    /// The recipe of weight `number`, which has pieces, its elements as `dtype` or unchanged.
    pub(super) fn recipe_of_pieces(
        &self,
        number: usize,
        pieces: &FolderPieces,
        dtype: Option<DType>,
    ) -> Result<Recipe> {
        let info = self.table().get(number);
        // The bytes of an element whose type only PyTorch has are a separate axis.
        let (own, item, unit) = match info.element {
            Element::Plain(dtype) => (dtype, None, dtype.bytes().unwrap_or(1) as u64),
            Element::Torch(dtype) => (DType::UInt8, Some(dtype.bytes() as i64), dtype.bytes()),
            _ => return Err(Error::Argument("a piece has elements of no fixed size".to_owned())),
        };
        let dims =
            |dims: &[u64], last: Option<i64>| dims.iter().map(|&dim| dim as i64).chain(last).collect::<Vec<i64>>();
        let mut recipe = Recipe::empty(dtype.unwrap_or(own), Device::Cpu, dims(info.shape, item));
        for piece in pieces.of(info.span.start())? {
            let (start, size) = (dims(piece.start, item.map(|_| 0)), dims(piece.size, item));
            let placement = placed(&piece, own, size, item, unit)?;
            recipe.pieces.push(RecipePiece { start, request: self.request_at(number, placement, dtype)? });
        }
        Ok(recipe.in_order())
    }
}

/// The placement of a piece, with elements of `unit` bytes each.
fn placed(piece: &PlacedPiece<'_>, dtype: DType, shape: Vec<i64>, item: Option<i64>, unit: u64) -> Result<Placement> {
    let overflow = || Error::Argument("the size of a piece overflows".to_owned());
    let located = match piece.place {
        PiecePlace::Located(located) => located,
        PiecePlace::InItem(number, len) => {
            let end = piece.item.offset.checked_add(piece.item.length).ok_or_else(overflow)?;
            let span = Span::within(end, piece.item.offset, piece.item.length)?;
            let inflate = Some(Inflate { codec: Codec::Item(number), size: len, crc32: 0 });
            let segment = FileSegment { file: piece.file, span, transform: Transform { inflate, swap: Swap::Nothing } };
            return Ok(Placement { segment, aligned: false, dtype, shape, strides: None, start: 0, len, before: 0 });
        }
    };
    let is_empty = shape.contains(&0);
    let strides = located.strides.as_ref().filter(|_| !is_empty).map(|strides| match item {
        // In bytes, where the bytes of an element are an axis.
        Some(item) => strides.iter().map(|stride| stride.saturating_mul(item)).chain([1]).collect(),
        None => strides.clone(),
    });
    let dense = crate::buffer::row_major(&shape);
    let reach = extent(&shape, strides.as_deref().unwrap_or(&dense)).ok_or_else(overflow)?;
    let len = if is_empty { 0 } else { reach.len };
    let len = len.checked_mul(if item.is_some() { 1 } else { unit }).ok_or_else(overflow)?;
    let first = located.storage.checked_add(located.start).ok_or_else(overflow)?;
    let end = first.checked_add(len).ok_or_else(overflow)?;
    let (span, transform, start) = match located.unpacked {
        None => (Span::within(end, first, len)?, Transform::default(), 0),
        Some(size) => {
            let of_item = piece.item.offset.checked_add(piece.item.length).ok_or_else(overflow)?;
            Span::within(size, first, len)?;
            let inflate = Some(Inflate { codec: Codec::Zstd, size, crc32: 0 });
            let span = Span::within(of_item, piece.item.offset, piece.item.length)?;
            (span, Transform { inflate, swap: Swap::Nothing }, first)
        }
    };
    let segment = FileSegment { file: piece.file, span, transform };
    let aligned = first.is_multiple_of(unit.clamp(1, 8));
    Ok(Placement { segment, aligned, dtype, shape, strides, start, len, before: 0 })
}
