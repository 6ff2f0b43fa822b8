//! Items that zstd compressed as a whole: all that a short one unpacks to, or both ends of what a long one does, which say where its elements are.

use std::borrow::Cow;
use std::sync::Arc;

use super::super::packed::{STEP, Unpacker};
use crate::budget;
use crate::error::{Diagnostic, Error, Result};
use crate::format::distributed::Item;
use crate::memory::Origin;
use crate::rules;
use crate::source::{Part, Source};
use crate::workers::Interrupt;

/// What is kept of each end: more than torch.save writes before the elements of a tensor, and behind them.
const KEPT: usize = 1 << 20;

/// Whether this is what torch calls its extension for zstd.
pub(super) fn is_zstd(transform: &str) -> bool {
    let (name, version) = transform.split_once('/').unwrap_or((transform, ""));
    name == "stream.zstd" && version.split('.').next() == Some("1")
}

/// The error for an item that was compressed.
fn fault(file: &dyn Source, item: &Item, cause: &str) -> Error {
    let cause = format!("the item was compressed, and {cause}");
    Diagnostic::new(rules::DISTRIBUTED_ITEM, cause).offset(item.offset).path(file.path()).format()
}

/// Unpacks an item, and hands it to `take` in parts.
fn unpack(
    file: &dyn Source,
    item: &Item,
    most: u64,
    interrupt: Interrupt<'_>,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<u64> {
    let mut unpacked = 0;
    let mut unpacker = Unpacker::default();
    unpacker.frames(
        file,
        &(item.offset..item.offset + item.length),
        &mut budget::zeroed(STEP)?,
        interrupt,
        &|cause| fault(file, item, &cause),
        &mut |part| {
            unpacked += part.len() as u64;
            if unpacked > most {
                return Err(fault(file, item, &format!("it unpacks to more than the {most} bytes that it may have")));
            }
            take(part)
        },
    )?;
    Ok(unpacked)
}

/// All that an item unpacks to, if that is no more than this.
pub(super) fn unpacked(file: &dyn Source, item: &Item, most: u64, interrupt: Interrupt<'_>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    unpack(file, item, most, interrupt, |part| {
        budget::reserve(&mut bytes, part.len())?;
        bytes.extend_from_slice(part);
        Ok(())
    })?;
    Ok(bytes)
}

/// Both ends of what an item unpacks to.
#[derive(Debug)]
pub(super) struct Ends<'a> {
    origin: Arc<Origin>,
    len: u64,
    head: Cow<'a, [u8]>,
    tail: Vec<u8>,
}

impl<'a> Ends<'a> {
    /// All of what an item of a file unpacks to.
    pub(super) fn whole(file: &dyn Source, bytes: &'a [u8]) -> Self {
        Self { origin: file.origin().clone(), len: bytes.len() as u64, head: Cow::Borrowed(bytes), tail: Vec::new() }
    }

    /// Of an item of a file, which unpacks to so many bytes at most.
    pub(super) fn of(file: &Arc<dyn Source>, item: &Item, most: u64, interrupt: Interrupt<'_>) -> Result<Self> {
        let (mut head, mut tail): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
        let len = unpack(&**file, item, most, interrupt, |part| {
            let of_head = part.len().min(KEPT - head.len());
            head.extend_from_slice(&part[..of_head]);
            tail.extend_from_slice(&part[of_head..]);
            if tail.len() > KEPT + STEP {
                tail.drain(..tail.len() - KEPT);
            }
            Ok(())
        })?;
        Ok(Self { origin: file.origin().clone(), len, head: Cow::Owned(head), tail })
    }
}

impl Source for Ends<'_> {
    fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, parts: &mut [Part<'_>], _: Interrupt<'_>) -> Result<()> {
        let (head, behind) = (self.head.len() as u64, self.len - self.tail.len() as u64);
        for Part { offset, bytes } in parts {
            let (offset, of_head) = (*offset, head.saturating_sub(*offset).min(bytes.len() as u64) as usize);
            let (first, second) = bytes.split_at_mut(of_head);
            if !first.is_empty() {
                first.copy_from_slice(&self.head[offset as usize..offset as usize + of_head]);
            }
            if second.is_empty() {
                continue;
            }
            // What is between the ends is not kept, and says nothing of where elements are.
            let from = offset.max(head).checked_sub(behind).and_then(|from| self.tail.get(from as usize..));
            let from = from.and_then(|from| from.get(..second.len()));
            second.copy_from_slice(from.ok_or_else(|| self.origin.truncated())?);
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<()> {
        Ok(())
    }
}
