//! Items that zstd compressed whole: a short one is unpacked whole, and a long one to both ends, which locate its elements.

use std::borrow::Cow;
use std::sync::Arc;

use super::super::packed::{STEP, Unpacker};
use crate::budget;
use crate::error::{Diagnostic, Error, Result};
use crate::format::distributed::DistributedItem;
use crate::memory::Origin;
use crate::rules;
use crate::source::{ReadRange, Source};
use crate::workers::Interrupt;

/// The size of each end that is kept: more than torch.save writes before and behind the elements of a tensor.
const KEPT: usize = 1 << 20;

/// Whether this is torch's name of its zstd extension.
pub(super) fn is_zstd(transform: &str) -> bool {
    let (name, version) = transform.split_once('/').unwrap_or((transform, ""));
    name == "stream.zstd" && version.split('.').next() == Some("1")
}

/// The error for a compressed item.
fn fault(file: &dyn Source, item: &DistributedItem, cause: &str) -> Error {
    let cause = format!("cannot unpack the compressed item: {cause}");
    Diagnostic::new(rules::DISTRIBUTED_ITEM, cause).offset(item.offset).path(file.path()).format()
}

/// Unpacks an item, and passes it to `take` in parts.
fn unpack(
    file: &dyn Source,
    item: &DistributedItem,
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
                return Err(fault(file, item, &format!("it unpacks to more than the limit of {most} bytes")));
            }
            take(part)
        },
    )?;
    Ok(unpacked)
}

/// The whole unpacked item, if it is at most this long.
pub(super) fn unpacked(
    file: &dyn Source,
    item: &DistributedItem,
    most: u64,
    interrupt: Interrupt<'_>,
) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    unpack(file, item, most, interrupt, |part| {
        budget::reserve(&mut bytes, part.len())?;
        bytes.extend_from_slice(part);
        Ok(())
    })?;
    Ok(bytes)
}

/// Both ends of an unpacked item.
#[derive(Debug)]
pub(super) struct Ends<'a> {
    origin: Arc<Origin>,
    len: u64,
    head: Cow<'a, [u8]>,
    tail: Vec<u8>,
}

impl<'a> Ends<'a> {
    /// A whole unpacked item of a file.
    pub(super) fn whole(file: &dyn Source, bytes: &'a [u8]) -> Self {
        Self { origin: file.origin().clone(), len: bytes.len() as u64, head: Cow::Borrowed(bytes), tail: Vec::new() }
    }

    /// Unpacks an item of a file, of at most `most` bytes.
    pub(super) fn of(
        file: &Arc<dyn Source>,
        item: &DistributedItem,
        most: u64,
        interrupt: Interrupt<'_>,
    ) -> Result<Self> {
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

    fn read(&self, parts: &mut [ReadRange<'_>], _: Interrupt<'_>) -> Result<()> {
        let (head, behind) = (self.head.len() as u64, self.len - self.tail.len() as u64);
        for ReadRange { offset, bytes } in parts {
            let (offset, of_head) = (*offset, head.saturating_sub(*offset).min(bytes.len() as u64) as usize);
            let (first, second) = bytes.split_at_mut(of_head);
            if !first.is_empty() {
                first.copy_from_slice(&self.head[offset as usize..offset as usize + of_head]);
            }
            if second.is_empty() {
                continue;
            }
            // The middle is not kept, and does not locate elements.
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
