//! The values of a folder that are not tensors (counters, texts, settings), each written by `torch.save`. Those of a file are read together, and no
//! call in their pickles is executed.

use std::path::PathBuf;
use std::sync::Arc;

use super::unpacked::{is_zstd, unpacked};
use crate::budget;
use crate::checkpoint::{ValueFile, torch};
use crate::error::{Error, Result};
use crate::format::HeaderOptions;
use crate::format::distributed::{Distributed, DistributedValue};
use crate::format::pickle::Leaf;
use crate::memory;
use crate::source::{InMemory, Loaded, ReadRange, Source};
use crate::workers::in_order;

/// Limits for values that are read when a folder is opened: their number, the longest one, and the total, both stored and unpacked.
const MAX_VALUES: usize = 20_000;
const MAX_VALUE_BYTES: u64 = 1 << 20;
const MAX_BYTES: u64 = 64 << 20;
/// Files that are read concurrently.
const FILES_AT_A_TIME: usize = 16;

/// The values, and the number of those not read: too many, too long, or not written by torch.save.
pub(super) fn read(
    declared: &Distributed,
    paths: &[PathBuf],
    files: &[Option<Arc<dyn Source>>],
    options: &HeaderOptions,
) -> Result<(Vec<ValueFile>, usize)> {
    let mut order: Vec<(usize, &DistributedValue)> = budget::collected(declared.values.iter().enumerate())?;
    let mut left = MAX_BYTES;
    order.truncate(MAX_VALUES);
    order.retain(|(_, value)| {
        let item = &value.item;
        let end = item.offset + item.length;
        let is_present = files[item.file as usize].as_ref().is_some_and(|file| end <= file.len());
        let is_read =
            is_present && item.transform.as_deref().is_none_or(is_zstd) && item.length <= MAX_VALUE_BYTES.min(left);
        left -= if is_read { item.length } else { 0 };
        is_read
    });
    order.sort_unstable_by_key(|(_, value)| (value.item.file, value.item.offset));
    let mut values: Vec<(usize, ValueFile)> = budget::list(order.len())?;
    let mut unpacked_buffer = MAX_BYTES;
    let lens = |group: &[(usize, &DistributedValue)]| -> Vec<usize> {
        group.iter().map(|(_, value)| budget::saturating_usize(value.item.length)).collect()
    };
    let mut groups = Vec::new();
    for group in order.chunk_by(|(_, a), (_, b)| a.item.file == b.item.file) {
        if let Some(source) = group.first().and_then(|(_, value)| files[value.item.file as usize].as_ref()) {
            groups.push((source, group, budget::zeroed(lens(group).iter().sum())?));
        }
    }
    let jobs = groups.iter_mut().collect();
    in_order(FILES_AT_A_TIME, jobs, &options.interrupt, |(source, group, bytes), (): &mut (), cancel| {
        let parts = group.iter().zip(memory::parts(bytes, lens(group)));
        let mut parts: Vec<ReadRange<'_>> =
            parts.map(|((_, value), bytes)| ReadRange { offset: value.item.offset, bytes }).collect();
        source.read_without_gaps(&mut parts, cancel)
    })?;
    for (source, group, mut bytes) in groups {
        (options.interrupt)()?;
        for ((number, value), bytes) in group.iter().zip(memory::parts(&mut bytes, lens(group))) {
            let own = if value.item.transform.is_none() {
                bytes.to_vec()
            } else {
                let most = MAX_VALUE_BYTES.min(unpacked_buffer);
                let loaded = Loaded::new(&**source, value.item.offset, bytes);
                let own = unpacked(&loaded, &value.item, most, &options.interrupt);
                unpacked_buffer -= own.as_ref().map_or(most, |own| own.len() as u64);
                match own {
                    Ok(own) => own,
                    Err(Error::Format(_)) => continue,
                    Err(error) => return Err(error),
                }
            };
            let path = &paths[value.item.file as usize];
            let mut torch = match torch::item(&InMemory::new(path, own), options) {
                Ok(torch) => torch,
                Err(Error::Format(_) | Error::Unsupported(_) | Error::Diagnostics(_)) => continue,
                Err(error) => return Err(error),
            };
            torch.objects = vec![Leaf { name: value.name.clone(), object: torch.pickled.root, tensor: None }];
            values.push((*number, ValueFile { path: path.clone(), torch: Arc::new(torch) }));
        }
    }
    // In the order of the state dict.
    values.sort_unstable_by_key(|(number, _)| *number);
    let unread = declared.values.len() - values.len();
    Ok((values.into_iter().map(|(_, value)| value).collect(), unread))
}
