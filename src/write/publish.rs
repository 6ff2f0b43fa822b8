//! Deltas as other libraries publish them: a folder `weight_v000012` with what changed of each tensor as a zstd frame, and an index.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::json;

use super::delta::{DeltaSummary, Pair, compared};
use super::layout::{Declared, Stored};
use super::version::{Elements, Version};
use super::{Options, Output, Replacement, zero_runs};
use crate::budget;
use crate::delta::{BLOCK, Scratch};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::delta::published::{Checksum, Encoding, Hasher, Published};
use crate::source::store::is_url;
use crate::text;
use crate::workers::{Interrupt, in_order, threads};

/// The names that trainers give the files.
const FILE: &str = "model-00000-of-00001.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Bytes of both versions that are compared at a time.
const COMPARED: usize = 1 << 20;
/// What a frame begins with, and where the byte is that says what follows.
const MAGIC: usize = 4;
/// In that byte: eight bytes say how much the frame unpacks to.
const SAYS_LENGTH: u8 = 3 << 6;

/// What changed of a tensor.
struct Frame {
    bytes: Vec<u8>,
    checksum: Checksum,
    elements: u64,
}

/// Writes what changed from `base` to the new version into a folder that has no index yet; `done` counts the bytes of the new version that were compared.
///
/// Each tensor is read once, or twice if it changed and the bytes are overwritten; what changed is in memory, compressed, until it is written. The index is
/// the last file: whoever waits for it finds all of them.
///
/// # Errors
/// Tensors that are new, are no more or have another dtype or shape, for which these folders have no place; what reading and writing say.
pub(super) fn publish(
    base: &Version<'_>,
    new: &Version<'_>,
    folder: &Path,
    form: &Published,
    options: Options,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<DeltaSummary> {
    let index = folder.join(INDEX);
    if is_url(folder) || index.exists() {
        let cause = if is_url(folder) { "is a URL" } else { "has an index already" };
        return Err(Error::Argument(format!("{} {cause}: give a new folder of a disk", text::path(folder))));
    }
    let pairs = pairs(base, new)?;
    let frames: Mutex<BTreeMap<&str, Frame>> = Mutex::default();
    in_order(threads(), pairs.iter().collect(), interrupt, |pair: &Pair<'_>, (): &mut (), go_on| {
        let frame = frame(pair, form, go_on)?;
        done.fetch_add(pair.bytes, Ordering::Relaxed);
        let mut frames = frames.lock().unwrap_or_else(PoisonError::into_inner);
        frames.extend(frame.map(|frame| (pair.name, frame)));
        Ok(())
    })?;
    let frames = frames.into_inner().unwrap_or_else(PoisonError::into_inner);
    std::fs::create_dir_all(folder).map_err(|error| Error::io(folder, "make the folder", error))?;
    let mut files = Vec::new();
    if !frames.is_empty() {
        let (mut declared, mut sums) = (Vec::new(), BTreeMap::new());
        for (name, frame) in &frames {
            let (stored, shape) = (Stored::Plain(DType::UInt8), vec![frame.bytes.len() as u64]);
            declared.push(Declared { name: (*name).to_owned(), stored, shape });
            sums.insert((*name).to_owned(), frame.checksum.digits().to_owned());
        }
        let output = Output::Safetensors { path: folder.join(FILE), metadata: Some(sums), options };
        files = output.write(&declared, base.opened, false, interrupt, |writer, _| {
            frames.iter().try_for_each(|(name, frame)| writer.write_bytes(name, 0, &frame.bytes, interrupt))
        })?;
    }
    let map: BTreeMap<&str, &str> = frames.keys().map(|name| (*name, FILE)).collect();
    let said = json!({"metadata": form.words(), "weight_map": map});
    Replacement::of_bytes(&index, said.to_string().as_bytes(), options.sync)?.commit()?;
    files.push(index);
    Ok(DeltaSummary {
        base: form.base_version.clone(),
        target: form.version.clone(),
        changed: frames.len(),
        unchanged: pairs.len() - frames.len(),
        elements: frames.values().map(|frame| frame.elements).sum(),
        files,
        ..DeltaSummary::default()
    })
}

/// The tensors of both versions, which must be the same but for their values.
pub(super) fn pairs<'a>(base: &'a Version<'a>, new: &'a Version<'a>) -> Result<Vec<Pair<'a>>> {
    let refused = |name: &str, cause: &str| {
        Err(Error::Argument(format!(
            "tensor '{}' {cause}: a delta of this dialect has no place for that; write one of max-weights, or a whole version",
            text::shown(name)
        )))
    };
    let pairs = new.tensors.iter().map(|(name, new)| Pair::new(base, name, new)).collect::<Result<Vec<_>>>()?;
    if let Some(pair) = pairs.iter().find(|pair| pair.base.is_none()) {
        return refused(pair.name, "is not in the base with this dtype and shape");
    }
    match base.tensors.keys().find(|name| !new.tensors.contains_key(&**name)) {
        Some(name) => refused(name, "is not in the new version"),
        None => Ok(pairs),
    }
}

/// What changed of a tensor; none if nothing did.
fn frame(pair: &Pair<'_>, form: &Published, interrupt: Interrupt<'_>) -> Result<Option<Frame>> {
    let Some(base) = pair.base else { return Ok(None) };
    let mut both = Both {
        base,
        pair,
        hasher: Hasher::new(form.checksum),
        at: 0,
        old: Vec::new(),
        new: Vec::new(),
        scratch: Scratch::default(),
        elements: 0,
    };
    let bytes = match form.encoding {
        Encoding::Xor => {
            let mut changes = Changes { both: &mut both, interrupt, given: 0, failed: None };
            let bytes = zero_runs::compress(&mut changes);
            if let Some(error) = changes.failed {
                return Err(error);
            }
            with_length(bytes, pair.bytes)
        }
        Encoding::Overwrite => {
            let changes = both.overwrites(interrupt)?;
            let len = changes.len() as u64;
            with_length(compress_to_vec(&*changes, CompressionLevel::Fastest), len)
        }
    };
    pair.check_unchanged()?;
    let elements = both.elements;
    Ok((elements > 0).then(|| Frame { bytes, checksum: both.hasher.finish(), elements }))
}

/// A frame that says how much it unpacks to, as readers want it that make room for it before. Behind the byte that says what follows, there is one for the
/// window, and then the length.
fn with_length(mut frame: Vec<u8>, len: u64) -> Vec<u8> {
    if let Some(says) = frame.get_mut(MAGIC) {
        *says |= SAYS_LENGTH;
        frame.splice(MAGIC + 2..MAGIC + 2, len.to_le_bytes());
    }
    frame
}

/// Both versions of a tensor, read from the first byte to the last.
struct Both<'a> {
    base: &'a Elements<'a>,
    pair: &'a Pair<'a>,
    /// Of the new version.
    hasher: Hasher,
    at: u64,
    old: Vec<u8>,
    new: Vec<u8>,
    scratch: Scratch,
    /// How many changed.
    elements: u64,
}

impl Both<'_> {
    /// Reads the next bytes of both; false at the end.
    fn read(&mut self, interrupt: Interrupt<'_>) -> Result<bool> {
        interrupt()?;
        let len = (self.pair.bytes - self.at).min(COMPARED as u64) as usize;
        for (bytes, elements) in [(&mut self.old, self.base), (&mut self.new, &self.pair.new.elements)] {
            bytes.resize(len, 0);
            elements.read(self.at, bytes, interrupt)?;
        }
        self.hasher.update(&self.new);
        let width = self.pair.width();
        for (old, new) in self.old.chunks(BLOCK * width).zip(self.new.chunks(BLOCK * width)) {
            self.elements += compared(old, new, width, &mut self.scratch)?.0.len() as u64;
        }
        self.at += len as u64;
        Ok(len > 0)
    }

    /// How many bytes changed, their places, and what is there now.
    fn overwrites(&mut self, interrupt: Interrupt<'_>) -> Result<Vec<u8>> {
        let (mut places, mut values): (Vec<u8>, Vec<u8>) = (vec![0; size_of::<u32>()], Vec::new());
        loop {
            let start = self.at;
            if !self.read(interrupt)? {
                break;
            }
            let blocks = self.old.chunks(BLOCK).zip(self.new.chunks(BLOCK));
            for (first, (old, new)) in (start..).step_by(BLOCK).zip(blocks) {
                let (numbers, bytes) = compared(old, new, 1, &mut self.scratch)?;
                budget::reserve(&mut places, numbers.len() * size_of::<u32>())?;
                for number in numbers {
                    let Ok(place) = u32::try_from(first + u64::from(*number)) else {
                        let name = text::shown(self.pair.name);
                        let cause =
                            format!("tensor '{name}' changed beyond its first 4 GiB: overwrite has places of 32 bits");
                        return Err(Error::Argument(format!("{cause}; take xor")));
                    };
                    places.extend(place.to_le_bytes());
                }
                budget::reserve(&mut values, bytes.len())?;
                values.extend_from_slice(bytes);
            }
        }
        let count = u32::try_from(values.len()).unwrap_or(u32::MAX);
        places[..size_of::<u32>()].copy_from_slice(&count.to_le_bytes());
        places.append(&mut values);
        Ok(places)
    }
}

/// Both versions, combined by exclusive or, as the compressor reads them. It takes no errors: what fails ends early, and is said afterwards.
struct Changes<'a, 'b> {
    both: &'a mut Both<'b>,
    interrupt: Interrupt<'a>,
    /// Of what was read last.
    given: usize,
    failed: Option<Error>,
}

impl io::Read for Changes<'_, '_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.given == self.both.new.len() && self.failed.is_none() {
            self.given = 0;
            if let Err(error) = self.both.read(self.interrupt) {
                self.failed = Some(error);
            }
            let Both { old, new, .. } = &mut *self.both;
            old.iter_mut().zip(new).for_each(|(old, new)| *old ^= *new);
        }
        if self.failed.is_some() {
            return Ok(0);
        }
        let there: Range<usize> = self.given..self.both.old.len().min(self.given + out.len());
        let changes = &self.both.old[there.clone()];
        out[..changes.len()].copy_from_slice(changes);
        self.given = there.end;
        Ok(changes.len())
    }
}
