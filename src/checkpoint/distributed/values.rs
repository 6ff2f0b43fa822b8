//! The values of a folder that are not tensors (counters, texts, settings), each of which `torch.save` wrote: read with their neighbours, and never
//! made by what their pickles name.

use std::path::PathBuf;
use std::sync::Arc;

use super::unpacked::{is_zstd, unpacked};
use crate::budget;
use crate::checkpoint::{ValueFile, torch};
use crate::error::{Error, Result};
use crate::format::Options;
use crate::format::distributed::{Distributed, Value};
use crate::format::pickle::Leaf;
use crate::source::{InMemory, Part, Source};

/// The most values that are read when a folder is opened, the longest of them, and all of them together, in their files and unpacked.
const MAX_VALUES: usize = 20_000;
const MAX_VALUE_BYTES: u64 = 1 << 20;
const MAX_BYTES: u64 = 64 << 20;
/// Values that are no farther apart are read together, up to so many bytes.
const READ_ACROSS: u64 = 16 << 10;
const TOGETHER: u64 = 4 << 20;

/// The values, and how many of them are not read: those that are too many or too long, and what torch.save did not write.
pub(super) fn read(
    said: &Distributed,
    paths: &[PathBuf],
    files: &[Option<Arc<dyn Source>>],
    options: &Options,
) -> Result<(Vec<ValueFile>, usize)> {
    let mut order: Vec<(usize, &Value)> = budget::collected(said.values.iter().enumerate())?;
    let mut room = MAX_BYTES;
    order.truncate(MAX_VALUES);
    order.retain(|(_, value)| {
        let item = &value.item;
        let end = item.offset + item.length;
        let is_there = files[item.file as usize].as_ref().is_some_and(|file| end <= file.len());
        let is_read =
            is_there && item.transform.as_deref().is_none_or(is_zstd) && item.length <= MAX_VALUE_BYTES.min(room);
        room -= if is_read { item.length } else { 0 };
        is_read
    });
    order.sort_unstable_by_key(|(_, value)| (value.item.file, value.item.offset));
    let mut values: Vec<(usize, ValueFile)> = budget::list(order.len())?;
    let (mut rest, mut unpacked_room) = (&*order, MAX_BYTES);
    while let Some((_, first)) = rest.first() {
        let (file, start) = (first.item.file, first.item.offset);
        let mut end = start;
        let is_near = |(_, value): &&(usize, &Value)| {
            let item = &value.item;
            let near = item.file == file
                && item.offset <= end.max(start) + READ_ACROSS
                && item.offset + item.length - start <= TOGETHER;
            end = end.max(item.offset + item.length);
            near
        };
        let count = rest.iter().take_while(is_near).count().max(1);
        let (group, after) = rest.split_at(count);
        rest = after;
        (options.interrupt)()?;
        let end = group.iter().map(|(_, value)| value.item.offset + value.item.length).max().unwrap_or(start);
        let mut bytes = budget::zeroed((end - start) as usize)?;
        let Some(source) = &files[file as usize] else { continue };
        source.read(&mut [Part { offset: start, bytes: &mut bytes }], &options.interrupt)?;
        for (number, value) in group {
            let at = (value.item.offset - start) as usize;
            let own = if value.item.transform.is_none() {
                bytes[at..at + value.item.length as usize].to_vec()
            } else {
                let most = MAX_VALUE_BYTES.min(unpacked_room);
                let own = unpacked(&**source, &value.item, most, &options.interrupt);
                unpacked_room -= own.as_ref().map_or(most, |own| own.len() as u64);
                match own {
                    Ok(own) => own,
                    Err(Error::Format(_)) => continue,
                    Err(error) => return Err(error),
                }
            };
            let path = &paths[file as usize];
            let mut torch = match torch::item(&InMemory::new(path, own), options) {
                Ok(torch) => torch,
                Err(Error::Format(_) | Error::Unsupported(_) | Error::Diagnostics(_)) => continue,
                Err(error) => return Err(error),
            };
            torch.objects = vec![Leaf { name: value.name.clone(), object: torch.pickled.root, tensor: None }];
            values.push((*number, ValueFile { path: path.clone(), torch: Arc::new(torch) }));
        }
    }
    // As the state dict has them.
    values.sort_unstable_by_key(|(number, _)| *number);
    let unread = said.values.len() - values.len();
    Ok((values.into_iter().map(|(_, value)| value).collect(), unread))
}
