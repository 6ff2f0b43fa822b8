//! A sharded save: several ranks write the files of one checkpoint, each its own bytes at their final offsets.
//!
//! The layout follows from names, dtypes, shapes and meshes, so every rank derives the same one without communication.

use std::ops::Range;
use std::path::PathBuf;

use sha2::{Digest as _, Sha256};

use super::in_store::InStore;
use super::unfinished::remove_abandoned;
use super::{DeclaredTensor, FileLayout, SaveDestination, Shards, StoredElements, WriteOptions};
use crate::cast::elements_per_group;
use crate::error::{Error, Result};
use crate::load::ranks::{Mesh, OwnedBytes, RankShare};
use crate::source::store::{is_url, join};
use crate::text;

/// The folder, and the names and options of its files.
#[derive(Debug, Clone)]
pub struct ShardedFolder {
    /// Its path; it is made if it does not exist.
    pub path: PathBuf,
    /// The prefix of the file names.
    pub stem: String,
    /// The maximum bytes of tensors in a file.
    pub most: u64,
    /// How files are written.
    pub options: WriteOptions,
    /// The store for URLs.
    pub to: SaveDestination,
}

/// The shards of ranks.
#[derive(Debug, Clone)]
pub enum RankParts {
    /// One shard per tensor, by the number of its mesh; without a mesh every rank has the whole tensor.
    Placed(Vec<Option<usize>>, Vec<Mesh>),
    /// Disjoint boxes per rank: the number of a tensor, and a range of each axis.
    Boxes(Vec<Vec<(usize, Vec<Range<u64>>)>>),
}

impl RankParts {
    /// For each tensor, the ranks that have boxes of it with the numbers of these boxes, in order.
    ///
    /// # Errors
    /// A mesh or a tensor that does not exist; boxes of another number of ranks.
    fn holders(&self, count: usize, world: u32) -> Result<Vec<Vec<(u32, usize)>>> {
        let mut holders = vec![Vec::new(); count];
        match self {
            Self::Placed(of, meshes) => {
                if of.len() != count || of.iter().flatten().any(|mesh| *mesh >= meshes.len()) {
                    return Err(Error::Argument("a tensor has a mesh that does not exist".to_owned()));
                }
            }
            Self::Boxes(boxes) => {
                if boxes.len() != world as usize {
                    return Err(Error::Argument("the boxes are for another number of ranks".to_owned()));
                }
                for (rank, own) in (0..).zip(boxes) {
                    for (part, (number, _)) in own.iter().enumerate() {
                        let of = holders.get_mut(*number);
                        of.ok_or_else(|| Error::Argument(format!("tensor {number} does not exist")))?
                            .push((rank, part));
                    }
                }
            }
        }
        Ok(holders)
    }

    /// The inputs of the plan.
    fn numbers(&self) -> Vec<u64> {
        match self {
            Self::Placed(of, meshes) => {
                let of = of.iter().map(|mesh| mesh.map_or(u64::MAX, |mesh| mesh as u64));
                meshes.iter().flat_map(Mesh::numbers).chain(of).collect()
            }
            Self::Boxes(boxes) => {
                let of_box = |(number, ranges): &(usize, Vec<Range<u64>>)| {
                    let bounds: Vec<u64> = ranges.iter().flat_map(|range| [range.start, range.end]).collect();
                    [*number as u64, bounds.len() as u64].into_iter().chain(bounds)
                };
                boxes
                    .iter()
                    .flat_map(|own| std::iter::once(own.len() as u64).chain(own.iter().flat_map(of_box)))
                    .collect()
            }
        }
    }
}

/// The files of a checkpoint that several ranks write, and the bytes of each rank.
#[derive(Debug)]
pub struct ShardedSave {
    pub(super) folder: ShardedFolder,
    tensors: Vec<DeclaredTensor>,
    parts: RankParts,
    /// For each tensor, the ranks that have boxes of it, and the numbers of these boxes.
    holders: Vec<Vec<(u32, usize)>>,
    world: u32,
    pub(super) shards: Shards,
    pub(super) layouts: Vec<FileLayout>,
    /// The file of each tensor, and its number in that layout.
    places: Vec<(usize, usize)>,
    hash: [u8; 32],
}

impl ShardedSave {
    /// Plans what `world` ranks write of these tensors.
    ///
    /// # Errors
    /// See [`Shards::new`] and [`FileLayout::safetensors`]; a mesh or a tensor that does not exist.
    pub fn new(
        folder: ShardedFolder,
        tensors: Vec<DeclaredTensor>,
        metadata: &std::collections::BTreeMap<String, String>,
        (parts, world): (RankParts, u32),
    ) -> Result<Self> {
        let holders = parts.holders(tensors.len(), world)?;
        let shards = Shards::new(&folder.stem, &tensors, folder.most)?;
        let layouts =
            shards.layouts(&tensors, |_, of_file| FileLayout::safetensors(of_file, Some(metadata), &folder.options))?;
        let mut places = vec![(0, 0); tensors.len()];
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        for (file, ((name, group), layout)) in shards.files.iter().zip(&layouts).enumerate() {
            add(name.as_bytes());
            add(layout.start());
            for &number in group {
                if let Some(position) = layout.position(&tensors[number].name) {
                    places[number] = (file, position);
                }
            }
        }
        for number in parts.numbers() {
            add(&number.to_le_bytes());
        }
        add(&world.to_le_bytes());
        let hash = hash.finalize().into();
        Ok(Self { folder, tensors, parts, holders, world, shards, layouts, places, hash })
    }

    /// A hash of the layout and the shards.
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// The parts of a rank, each with the number of its tensor and the bytes to write.
    ///
    /// # Errors
    /// See [`OwnedBytes::of_rank`] and [`OwnedBytes::of_box`]; a rank that does not exist.
    pub(super) fn written(&self, rank: u32) -> Result<Vec<(usize, RankShare)>> {
        let of = |number, part| {
            let owned = self.part(number, rank, part)?;
            Ok((number, owned.map(|owned| owned.all()).unwrap_or_default()))
        };
        match &self.parts {
            RankParts::Placed(..) => (0..self.tensors.len()).map(|number| of(number, number)).collect(),
            RankParts::Boxes(boxes) => {
                let own =
                    boxes.get(rank as usize).ok_or_else(|| Error::Argument(format!("rank {rank} does not exist")))?;
                own.iter().enumerate().map(|(part, (number, _))| of(*number, part)).collect()
            }
        }
    }

    /// A rank's parts of a tensor, with their numbers.
    pub(super) fn owned(&self, number: usize, rank: u32) -> Result<Vec<(usize, OwnedBytes)>> {
        let holders = &self.holders[number];
        let boxes =
            &holders[holders.partition_point(|(of, _)| *of < rank)..holders.partition_point(|(of, _)| *of <= rank)];
        let parts = match self.parts {
            RankParts::Placed(..) => &[(rank, number)][..],
            RankParts::Boxes(_) => boxes,
        };
        let owned = parts.iter().map(|&(_, part)| Ok(self.part(number, rank, part)?.map(|owned| (part, owned))));
        owned.filter_map(Result::transpose).collect()
    }

    /// A part of a tensor; `None` if the rank has nothing of it.
    fn part(&self, number: usize, rank: u32, part: usize) -> Result<Option<OwnedBytes>> {
        let tensor = &self.tensors[number];
        let StoredElements::Plain(dtype) = tensor.stored else { return Ok(None) };
        let per = elements_per_group(dtype);
        let unit = (per as u64, (per * dtype.bits() / 8) as u64);
        let owned = match &self.parts {
            RankParts::Placed(of, meshes) => {
                let mesh = of[number].map(|mesh| &meshes[mesh]);
                OwnedBytes::of_rank(&tensor.shape, unit, mesh, (rank, self.world), number as u64)
            }
            RankParts::Boxes(boxes) => OwnedBytes::of_box(&tensor.shape, unit, &boxes[rank as usize][part].1).map(Some),
        };
        owned.map_err(|error| match error {
            Error::Argument(cause) => Error::Argument(format!("tensor '{}': {cause}", text::escape(&tensor.name))),
            other => other,
        })
    }

    /// Fails if elements of a tensor are in boxes of several ranks, or of none. With placements, each element has one writer.
    pub(super) fn require_all(&self) -> Result<()> {
        let RankParts::Boxes(boxes) = &self.parts else { return Ok(()) };
        for (number, (tensor, holders)) in self.tensors.iter().zip(&self.holders).enumerate() {
            let refused = |why: String| {
                let (file, name) = (text::path(&self.target(self.file(number))), text::escape(&tensor.name));
                Err(Error::Argument(format!("{file}: tensor '{name}': {why}")))
            };
            let (mut own, mut covered) = (Vec::new(), 0);
            for &(rank, part) in holders {
                self.part(number, rank, part)?;
                let ranges = &*boxes[rank as usize][part].1;
                let elements: u64 = ranges.iter().map(|range| range.end - range.start).product();
                if elements > 0 {
                    covered += u128::from(elements);
                    own.push((rank, ranges));
                }
            }
            if let Some((one, other)) = overlapping(&mut own, tensor.shape.len()) {
                return refused(if one == other {
                    format!("two boxes of rank {one} overlap")
                } else {
                    format!("rank {one} and rank {other} have overlapping boxes")
                });
            }
            let all = tensor.shape.iter().product::<u64>();
            if covered < u128::from(all) {
                return refused(format!(
                    "ranks have {covered} of its {all} elements, so the others would not be written"
                ));
            }
        }
        Ok(())
    }

    pub(super) fn tensors(&self) -> &[DeclaredTensor] {
        &self.tensors
    }

    pub(super) fn world(&self) -> u32 {
        self.world
    }

    /// The file of a tensor, its number in that layout, and its bytes there.
    pub(super) fn file(&self, number: usize) -> usize {
        self.places[number].0
    }

    pub(super) fn position(&self, number: usize) -> usize {
        self.places[number].1
    }

    pub(super) fn range(&self, number: usize) -> Range<u64> {
        let (file, position) = self.places[number];
        self.layouts[file].places()[position].bytes.clone()
    }

    /// The header of a file, and its total bytes.
    pub(super) fn header(&self, file: usize) -> &[u8] {
        self.layouts[file].start()
    }

    pub(super) fn file_bytes(&self, file: usize) -> u64 {
        self.layouts[file].file_bytes()
    }

    pub(super) fn in_store(&self) -> Result<Option<InStore<'_>>> {
        let store = self.folder.to.store(&self.folder.path)?;
        Ok(store.map(|store| InStore { store, to: &self.folder.to, opened: &[] }))
    }

    /// Removes what a terminated rank left in the folder.
    pub fn remove_abandoned(&self) {
        if !is_url(&self.folder.path) {
            remove_abandoned(&self.folder.path);
        }
    }

    /// The final path of a file.
    pub(super) fn target(&self, file: usize) -> PathBuf {
        join(&self.folder.path, &self.shards.files[file].0)
    }
}

/// The ranks of two overlapping boxes, if there are any.
fn overlapping(boxes: &mut [(u32, &[Range<u64>])], axes: usize) -> Option<(u32, u32)> {
    for axis in 0..axes {
        // A position that no box crosses separates the boxes before it from those behind it.
        boxes.sort_by_key(|(_, ranges)| ranges[axis].start);
        let (mut reach, mut rest) = (0, Vec::new());
        for (at, (_, ranges)) in boxes.iter().enumerate() {
            if at > 0 && ranges[axis].start >= reach {
                rest.push(at);
            }
            reach = reach.max(ranges[axis].end);
        }
        if !rest.is_empty() {
            let (mut left, mut begin) = (boxes, 0);
            for at in rest {
                let (group, later) = left.split_at_mut(at - begin);
                if let Some(found) = overlapping(group, axes) {
                    return Some(found);
                }
                (left, begin) = (later, at);
            }
            return overlapping(left, axes);
        }
    }
    let pairs = boxes.iter().enumerate().flat_map(|(at, one)| boxes[at + 1..].iter().map(move |other| (one, other)));
    let shares = |(a, b): (&Range<u64>, &Range<u64>)| a.start.max(b.start) < a.end.min(b.end);
    pairs.filter(|(one, other)| one.1.iter().zip(other.1).all(shares)).map(|(one, other)| (one.0, other.0)).next()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Box3 = Vec<Range<u64>>;

    fn boxes() -> impl Strategy<Value = Vec<(u32, Box3)>> {
        let range = (0u64..5, 1u64..4).prop_map(|(start, len)| start..start + len);
        let one = (0u32..4, proptest::collection::vec(range, 3));
        proptest::collection::vec(one, 0..7)
    }

    proptest! {
        #[test]
        fn boxes_overlap_if_two_of_them_do(boxes in boxes()) {
            let has = |ranges: &Box3, at: [u64; 3]| ranges.iter().zip(at).all(|(range, at)| range.contains(&at));
            let mut pairs = Vec::new();
            for (first, (one, a)) in boxes.iter().enumerate() {
                for (other, b) in &boxes[first + 1..] {
                    let cells = (0..512u64).map(|cell| [cell / 64, cell / 8 % 8, cell % 8]);
                    if cells.clone().any(|at| has(a, at) && has(b, at)) {
                        pairs.extend([(*one, *other), (*other, *one)]);
                    }
                }
            }
            let mut own: Vec<(u32, &[Range<u64>])> = boxes.iter().map(|(rank, ranges)| (*rank, &**ranges)).collect();
            match overlapping(&mut own, 3) {
                Some(found) => prop_assert!(pairs.contains(&found)),
                None => prop_assert!(pairs.is_empty()),
            }
        }
    }
}
