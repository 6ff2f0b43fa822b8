//! Deltas as other libraries publish them: a folder `weight_v000012` with what changed of each tensor as a zstd frame, and an index.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::json;
use zstd::stream::raw::{Encoder, InBuffer, Operation, OutBuffer};

use super::aside::{Aside, Pieces};
use super::delta::{DeltaSummary, Pair, compared};
use super::layout::{Declared, Stored};
use super::version::{Elements, Version};
use super::{Options, Output, Replacement};
use crate::budget;
use crate::delta::{BLOCK, Scratch};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::delta::published::{Checksum, Encoding, Hasher, Published};
use crate::source::Spooled;
use crate::source::store::is_url;
use crate::text;
use crate::workers::{Interrupt, in_order, threads};

/// The names that trainers give the files.
const FILE: &str = "model-00000-of-00001.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Bytes of both versions that are compared at a time.
const COMPARED: usize = 256 << 10;
/// The level of zstd that others take.
const LEVEL: i32 = 1;
/// What is compressed before it is put aside.
const PACKED: usize = 1 << 20;
/// Of the places that are overwritten in a tensor, and of what is there then, so many bytes each are in memory, and the rest in temporary files.
const IN_MEMORY: usize = 4 << 20;

/// What changed of a tensor.
struct Frame {
    pieces: Pieces,
    checksum: Checksum,
    elements: u64,
}

/// Writes what changed from `base` to the new version into a folder that has no index yet; `done` counts the bytes of the new version that were compared.
///
/// Each tensor is read once. What changed waits, compressed, in memory, and beyond 64 MiB in a temporary file. The index is the last file: whoever waits
/// for it finds all of them.
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
    let (frames, aside): (Mutex<BTreeMap<&str, Frame>>, _) = (Mutex::default(), Aside::new());
    in_order(threads(), pairs.iter().collect(), interrupt, |pair: &Pair<'_>, room: &mut Room, go_on| {
        let frame = frame(pair, form, room, &aside, go_on)?;
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
            let (stored, shape) = (Stored::Plain(DType::UInt8), vec![frame.pieces.len()]);
            declared.push(Declared { name: (*name).to_owned(), stored, shape });
            sums.insert((*name).to_owned(), frame.checksum.digits().to_owned());
        }
        let output = Output::Safetensors { path: folder.join(FILE), metadata: Some(sums), options };
        files = output.write(&declared, base.opened, false, interrupt, |writer, _| {
            frames
                .iter()
                .try_for_each(|(name, frame)| aside.write(&frame.pieces, writer, name, |_, bytes| bytes, interrupt))
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

/// What a thread keeps between tensors.
#[derive(Default)]
struct Room {
    old: Vec<u8>,
    new: Vec<u8>,
    scratch: Scratch,
    packer: Option<Packer>,
}

/// What changed of a tensor; none if nothing did.
fn frame(
    pair: &Pair<'_>,
    form: &Published,
    room: &mut Room,
    aside: &Aside,
    interrupt: Interrupt<'_>,
) -> Result<Option<Frame>> {
    let Some(base) = pair.base else { return Ok(None) };
    let Room { old, new, scratch, packer } = room;
    let packer = match packer {
        Some(packer) => packer,
        none => none.insert(Packer::new()?),
    };
    let (hasher, pieces) = (Hasher::new(form.checksum), Pieces::default());
    let mut both = Both { base, pair, hasher, at: 0, old, new, scratch, elements: 0 };
    let mut pack = Pack { packer, aside, pieces };
    match form.encoding {
        Encoding::Xor => {
            pack.begin(pair.bytes)?;
            while both.read(interrupt)? {
                both.old.iter_mut().zip(&*both.new).for_each(|(old, new)| *old ^= *new);
                both.elements += not_zero(both.old, pair.width());
                pack.push(both.old)?;
            }
        }
        Encoding::Overwrite => both.overwrites(&mut pack, interrupt)?,
    }
    pair.check_unchanged()?;
    if both.elements == 0 {
        return Ok(None);
    }
    Ok(Some(Frame { pieces: pack.finish()?, checksum: both.hasher.finish(), elements: both.elements }))
}

/// How many elements of so many bytes have a bit that is set.
fn not_zero(bytes: &[u8], width: usize) -> u64 {
    fn count<const WIDTH: usize>(bytes: &[u8]) -> usize {
        let (elements, rest) = bytes.as_chunks::<WIDTH>();
        elements.iter().filter(|element| **element != [0; WIDTH]).count()
            + usize::from(rest.iter().any(|byte| *byte != 0))
    }
    (match width {
        1 => count::<1>(bytes),
        2 => count::<2>(bytes),
        4 => count::<4>(bytes),
        _ => count::<8>(bytes),
    }) as u64
}

/// Makes frames of what they unpack to.
struct Packer {
    encoder: Encoder<'static>,
    /// What is compressed, and how many bytes that are.
    packed: Vec<u8>,
    len: usize,
}

impl Packer {
    fn new() -> Result<Self> {
        Ok(Self { encoder: Encoder::new(LEVEL).map_err(refused)?, packed: budget::zeroed(PACKED)?, len: 0 })
    }
}

fn refused(error: io::Error) -> Error {
    Error::io(Path::new("what changed"), "compress", error)
}

/// What changed of a tensor, as it is compressed and put aside.
struct Pack<'a> {
    packer: &'a mut Packer,
    aside: &'a Aside,
    pieces: Pieces,
}

impl Pack<'_> {
    /// Begins a frame, which says how much it unpacks to, as readers want it that make room for it before.
    fn begin(&mut self, len: u64) -> Result<()> {
        self.packer.len = 0;
        self.packer.encoder.reinit().map_err(refused)?;
        self.packer.encoder.set_pledged_src_size(Some(len)).map_err(refused)
    }

    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        let mut bytes = InBuffer::around(bytes);
        while bytes.pos() < bytes.src.len() {
            self.step(|encoder, out| encoder.run(&mut bytes, out))?;
        }
        Ok(())
    }

    /// Puts aside what is compressed when there is no more room for it; returns what `work` says.
    fn step(
        &mut self,
        work: impl FnOnce(&mut Encoder<'static>, &mut OutBuffer<'_, [u8]>) -> io::Result<usize>,
    ) -> Result<usize> {
        let Packer { encoder, packed, len } = &mut *self.packer;
        let mut out = OutBuffer::around_pos(&mut **packed, *len);
        let left = work(encoder, &mut out).map_err(refused)?;
        *len = out.pos();
        if *len == packed.len() {
            *len = 0;
            self.aside.push(packed, &mut self.pieces)?;
        }
        Ok(left)
    }

    fn finish(mut self) -> Result<Pieces> {
        while self.step(|encoder, out| encoder.finish(out, true))? > 0 {}
        let Packer { packed, len, .. } = &*self.packer;
        self.aside.push(&packed[..*len], &mut self.pieces)?;
        Ok(self.pieces)
    }
}

/// Both versions of a tensor, read from the first byte to the last.
struct Both<'a> {
    base: &'a Elements<'a>,
    pair: &'a Pair<'a>,
    /// Of the new version.
    hasher: Hasher,
    at: u64,
    old: &'a mut Vec<u8>,
    new: &'a mut Vec<u8>,
    scratch: &'a mut Scratch,
    /// How many changed.
    elements: u64,
}

impl Both<'_> {
    /// Reads the next bytes of both; false at the end.
    fn read(&mut self, interrupt: Interrupt<'_>) -> Result<bool> {
        interrupt()?;
        let len = (self.pair.bytes - self.at).min(COMPARED as u64) as usize;
        for (bytes, elements) in [(&mut *self.old, self.base), (&mut *self.new, &self.pair.new.elements)] {
            bytes.resize(len, 0);
            elements.read(self.at, bytes, interrupt)?;
        }
        self.hasher.update(self.new);
        self.at += len as u64;
        Ok(len > 0)
    }

    /// How many bytes changed, their places, and what is there now.
    fn overwrites(&mut self, pack: &mut Pack<'_>, interrupt: Interrupt<'_>) -> Result<()> {
        let [mut places, mut values] = [Spooled::within(IN_MEMORY), Spooled::within(IN_MEMORY)];
        let (mut room, width) = (Vec::new(), self.pair.width());
        loop {
            let start = self.at;
            if !self.read(interrupt)? {
                break;
            }
            for (old, new) in self.old.chunks(BLOCK * width).zip(self.new.chunks(BLOCK * width)) {
                self.elements += compared(old, new, width, self.scratch)?.0.len() as u64;
            }
            let blocks = self.old.chunks(BLOCK).zip(self.new.chunks(BLOCK));
            for (first, (old, new)) in (start..).step_by(BLOCK).zip(blocks) {
                let (numbers, bytes) = compared(old, new, 1, self.scratch)?;
                let is_far = |last: &u16| u32::try_from(first + u64::from(*last)).is_err();
                if numbers.last().is_some_and(is_far) {
                    let name = text::shown(self.pair.name);
                    let cause =
                        format!("tensor '{name}' changed beyond its first 4 GiB: overwrite has places of 32 bits");
                    return Err(Error::Argument(format!("{cause}; take xor")));
                }
                room.clear();
                room.extend(numbers.iter().flat_map(|number| (first as u32 + u32::from(*number)).to_le_bytes()));
                places.push(&room)?;
                values.push(bytes)?;
            }
        }
        let count = u32::try_from(values.len()).unwrap_or(u32::MAX).to_le_bytes();
        pack.begin(count.len() as u64 + places.len() + values.len())?;
        pack.push(&count)?;
        for spooled in [places, values] {
            for at in (0..spooled.len()).step_by(COMPARED) {
                interrupt()?;
                room.resize((spooled.len() - at).min(COMPARED as u64) as usize, 0);
                spooled.read_at(at, &mut room)?;
                pack.push(&room)?;
            }
        }
        Ok(())
    }
}
