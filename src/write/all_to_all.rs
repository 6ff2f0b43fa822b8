//! The all-to-all exchange before a save, so that each rank writes whole stripes of files. It covers tensors of which ranks have many short rows, and
//! parts of uploads.
//!
//! A stripe has one owner, which receives from every other rank what that would write there. Stripes are in file order, and each rank owns one per
//! round.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::ops::Range;

use super::sharded_save::ShardedSave;
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::load::ranks::RegionCopy;
use crate::memory::Block;
use crate::source::ReadCost;
use crate::workers::Interrupt;
use crate::write::run::piece;

/// The size of a stripe of a file on a disk.
const PIECE: u64 = 16 << 20;
/// Many shorter rows are exchanged instead of written directly: each would be a separate system call.
const SHORT: u64 = 64 << 10;
const MANY: u64 = 16;
/// Gaps between tensors up to this size are written with them.
const MAX_GAP: u64 = ReadCost::PAGE_CACHE.max_gap();

/// Bytes of a file that one rank writes at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileStripe {
    pub(super) file: usize,
    pub(super) range: Range<u64>,
    /// The tensors that overlap it, as indices in `order`.
    tensors: Range<usize>,
    pub(super) owner: u32,
}

/// All stripes of the exchange.
#[derive(Debug, Default)]
pub(super) struct AllToAll {
    all: Vec<FileStripe>,
    /// Tensors in file order.
    order: Vec<usize>,
    rounds: Vec<Range<usize>>,
    is_exchanged: Vec<bool>,
}

/// A rank's share of a stripe: the number of its part, the tensor's start relative to the stripe (negative before it), and rows.
type OwnShare = (usize, i128, Vec<RegionCopy>);

impl AllToAll {
    /// Plans the stripes of these files; `parts` are the part sizes of uploads, `None` for files on a disk.
    pub(super) fn new(save: &ShardedSave, parts: &[Option<u64>]) -> Result<Self> {
        let count = save.tensors().len();
        let mut pieces = Self { is_exchanged: vec![false; count], ..Self::default() };
        pieces.order = (0..count).filter(|&number| !save.range(number).is_empty()).collect();
        pieces.order.sort_unstable_by_key(|&number| (save.file(number), save.range(number).start));
        // Ranks by the number of bytes that they write so far.
        let mut least: BinaryHeap<Reverse<(u64, u32)>> = (0..save.world()).map(|rank| Reverse((0, rank))).collect();
        for (file, part) in parts.iter().enumerate() {
            let first = pieces.order.partition_point(|&number| save.file(number) < file);
            let end = pieces.order.partition_point(|&number| save.file(number) <= file);
            let begun = pieces.all.len();
            match *part {
                Some(part) => pieces.cut_upload(save, file, first..end, part.max(1)),
                None => pieces.cut_file(save, file, first..end)?,
            }
            let is_one = part.is_some() && pieces.all.len() == begun + 1;
            for piece in &mut pieces.all[begun..] {
                // An upload of one part is sent by the rank that completes it.
                if let Some(mut first) = least.peek_mut().filter(|_| !is_one) {
                    piece.owner = first.0.1;
                    first.0.0 += piece.range.end - piece.range.start;
                }
            }
        }
        let (mut first, mut owners) = (0, HashSet::new());
        for (number, piece) in pieces.all.iter().enumerate() {
            if !owners.insert(piece.owner) {
                pieces.rounds.push(first..number);
                first = number;
                owners = HashSet::from([piece.owner]);
            }
        }
        if first < pieces.all.len() {
            pieces.rounds.push(first..pieces.all.len());
        }
        Ok(pieces)
    }

    /// The parts of an upload with all of their bytes, including the header and gaps.
    fn cut_upload(&mut self, save: &ShardedSave, file: usize, tensors: Range<usize>, part: u64) {
        let of_file = &self.order[tensors.clone()];
        for start in (0..save.file_bytes(file)).step_by(usize::try_from(part).unwrap_or(usize::MAX)) {
            let range = start..start.saturating_add(part).min(save.file_bytes(file));
            let first = of_file.partition_point(|&number| save.range(number).end <= range.start);
            let end = of_file.partition_point(|&number| save.range(number).start < range.end);
            let tensors = tensors.start + first..tensors.start + end.max(first);
            self.all.push(FileStripe { file, range, tensors, owner: 0 });
        }
        for &number in of_file {
            self.is_exchanged[number] = true;
        }
    }

    /// Stripes of the tensors of which ranks have short rows.
    fn cut_file(&mut self, save: &ShardedSave, file: usize, tensors: Range<usize>) -> Result<()> {
        let mut open: Option<FileStripe> = None;
        for at in tensors {
            let number = self.order[at];
            if !has_short_rows(save, number)? {
                self.all.extend(open.take());
                continue;
            }
            self.is_exchanged[number] = true;
            let range = save.range(number);
            let joins =
                |open: &FileStripe| range.start - open.range.end <= MAX_GAP && range.end - open.range.start <= PIECE;
            if let Some(open) = open.as_mut().filter(|open| joins(open)) {
                open.range.end = range.end;
                open.tensors.end = at + 1;
                continue;
            }
            self.all.extend(open.take());
            let mut start = range.start;
            while range.end - start > PIECE + PIECE / 2 {
                self.all.push(FileStripe { file, range: start..start + PIECE, tensors: at..at + 1, owner: 0 });
                start += PIECE;
            }
            open = Some(FileStripe { file, range: start..range.end, tensors: at..at + 1, owner: 0 });
        }
        self.all.extend(open);
        Ok(())
    }

    /// Whether a tensor is exchanged instead of written by the ranks that have it.
    pub(super) fn has(&self, number: usize) -> bool {
        self.is_exchanged[number]
    }

    pub(super) fn rounds(&self) -> usize {
        self.rounds.len()
    }

    /// The bytes that a rank writes.
    pub(super) fn bytes(&self, rank: u32) -> u64 {
        let own = self.all.iter().filter(|piece| piece.owner == rank);
        own.map(|piece| piece.range.end - piece.range.start).sum()
    }

    /// The bytes that a rank writes, by tensor: the number of each, and a byte range of it.
    pub(super) fn owned(&self, save: &ShardedSave, rank: u32) -> impl Iterator<Item = (usize, Range<u64>)> {
        self.all.iter().filter(move |piece| piece.owner == rank).flat_map(move |piece| {
            self.order[piece.tensors.clone()].iter().map(move |&number| {
                let Range { start, end } = save.range(number);
                (number, piece.range.start.max(start) - start..piece.range.end.min(end).saturating_sub(start))
            })
        })
    }

    fn of_round(&self, round: usize) -> &[FileStripe] {
        self.rounds.get(round).map_or(&[], |pieces| &self.all[pieces.clone()])
    }

    /// A rank's share of a stripe.
    fn own(&self, save: &ShardedSave, piece: &FileStripe, rank: u32) -> Result<Vec<OwnShare>> {
        let mut own = Vec::new();
        for &number in &self.order[piece.tensors.clone()] {
            let start = save.range(number).start;
            let clip = piece.range.start.max(start) - start..piece.range.end.saturating_sub(start);
            for (part, owned) in save.owned(number, rank)? {
                let rows = owned.within(&clip);
                if !rows.is_empty() {
                    own.push((part, i128::from(start) - i128::from(piece.range.start), rows));
                }
            }
        }
        Ok(own)
    }

    /// The bytes that a rank sends to each rank in a round, and those that it receives from each.
    pub(super) fn sizes(&self, save: &ShardedSave, round: usize, rank: u32) -> Result<(Vec<u64>, Vec<u64>)> {
        let (mut to, mut of) = (vec![0; save.world() as usize], vec![0; save.world() as usize]);
        for one in self.of_round(round) {
            if one.owner != rank {
                to[one.owner as usize] += bytes_of(&self.own(save, one, rank)?);
                continue;
            }
            for peer in (0..save.world()).filter(|peer| *peer != rank) {
                of[peer as usize] += bytes_of(&self.own(save, one, peer)?);
            }
        }
        Ok((to, of))
    }

    /// Fills the message of a rank: its share of the stripes of each rank in turn.
    pub(super) fn gather(
        &self,
        save: &ShardedSave,
        (round, rank): (usize, u32),
        parts: &[Buffer],
        message: &mut [u8],
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let mut pieces: Vec<&FileStripe> = self.of_round(round).iter().filter(|one| one.owner != rank).collect();
        pieces.sort_by_key(|one| one.owner);
        let (mut rest, mut scratch) = (message, Vec::new());
        for one in pieces {
            for (part, _, rows) in self.own(save, one, rank)? {
                for rows in &rows {
                    let len = usize::try_from(rows.bytes()).unwrap_or(usize::MAX);
                    let (now, later) = rest.split_at_mut_checked(len).ok_or_else(short)?;
                    copy_rows(&parts[part], rows, now.chunks_mut(rows.len as usize), &mut scratch, interrupt)?;
                    rest = later;
                }
            }
        }
        Ok(())
    }

    /// The complete stripes of a rank in a round: the `header` of a file, its own share, and those received.
    pub(super) fn assembled(
        &self,
        save: &ShardedSave,
        (round, rank): (usize, u32),
        parts: &[Buffer],
        arrived: &[u8],
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<(&FileStripe, Block)>> {
        let mut pieces: Vec<(&FileStripe, Block)> = Vec::new();
        for one in self.of_round(round).iter().filter(|one| one.owner == rank) {
            // Reused memory needs no page faults.
            let mut block = Block::any((one.range.end - one.range.start) as usize)?;
            let bytes = block.as_mut_slice();
            bytes.fill(0);
            let header = save.header(one.file);
            if let Some(header) = header.get(one.range.start as usize..) {
                let len = header.len().min(bytes.len());
                bytes[..len].copy_from_slice(&header[..len]);
            }
            pieces.push((one, block));
        }
        let (mut rest, mut scratch) = (arrived, Vec::new());
        for peer in 0..save.world() {
            for (one, bytes) in &mut pieces {
                for (part, start, rows) in self.own(save, one, peer)? {
                    for rows in &rows {
                        let target = rows_of(bytes.as_mut_slice(), start + i128::from(rows.from), rows)?;
                        if peer == rank {
                            copy_rows(&parts[part], rows, target, &mut scratch, interrupt)?;
                            continue;
                        }
                        let len = usize::try_from(rows.bytes()).unwrap_or(usize::MAX);
                        let (now, later) = rest.split_at_checked(len).ok_or_else(short)?;
                        target.zip(now.chunks(rows.len as usize)).for_each(|(to, from)| to.copy_from_slice(from));
                        rest = later;
                    }
                }
            }
        }
        Ok(pieces)
    }
}

/// Whether a rank's shard of a tensor consists of many short rows.
fn has_short_rows(save: &ShardedSave, number: usize) -> Result<bool> {
    for rank in 0..save.world() {
        for (_, owned) in save.owned(number, rank)? {
            let rows = owned.within(&(0..u64::MAX));
            if !rows.is_empty() {
                return Ok(rows.iter().any(|rows| rows.rows >= MANY && rows.len < SHORT));
            }
        }
    }
    Ok(false)
}

fn bytes_of(own: &[OwnShare]) -> u64 {
    own.iter().flat_map(|(_, _, rows)| rows).map(RegionCopy::bytes).sum()
}

fn short() -> Error {
    Error::Argument("the data received from the other ranks is too short".to_owned())
}

/// The places of rows in the bytes of a stripe, which begins at `start`.
fn rows_of<'a>(bytes: &'a mut [u8], start: i128, rows: &RegionCopy) -> Result<impl Iterator<Item = &'a mut [u8]>> {
    let start = usize::try_from(start).map_err(|_| short())?;
    let (len, stride) = (rows.len as usize, if rows.rows == 1 { rows.len } else { rows.from_stride } as usize);
    let end = start + (rows.rows as usize - 1) * stride + len;
    let place = bytes.get_mut(start..end).ok_or_else(short)?;
    Ok(place.chunks_mut(stride.max(1)).map(move |row| &mut row[..len]))
}

/// Copies rows of a part to their places.
fn copy_rows<'a>(
    part: &Buffer,
    rows: &RegionCopy,
    places: impl Iterator<Item = &'a mut [u8]>,
    scratch: &mut Vec<u8>,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    interrupt()?;
    let len = rows.len as usize;
    if rows.rows == 1 || rows.to_stride == rows.len {
        let bytes = piece(part, rows.to as usize, rows.bytes() as usize, scratch, interrupt)?;
        places.zip(bytes.chunks(len)).for_each(|(to, from)| to.copy_from_slice(from));
        return Ok(());
    }
    for (place, at) in places.zip((rows.to..).step_by(rows.to_stride as usize)) {
        place.copy_from_slice(piece(part, at as usize, len, scratch, interrupt)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::dtype::DType;
    use crate::load::ranks::{Mesh, MeshSplit, RankShare};
    use crate::memory::Storage;
    use crate::workers::uninterrupted;
    use crate::write::{DeclaredTensor, RankParts, SaveDestination, ShardedFolder, StoredElements, WriteOptions};

    const WORLD: u32 = 3;

    fn save(tensors: &[(&[u64], Option<usize>)], most: u64) -> ShardedSave {
        let mesh =
            |axis| Mesh::new(WORLD, vec![0, 1, 2], vec![WORLD], vec![MeshSplit::Shard { axis }]).expect("a mesh");
        let of = tensors.iter().map(|(_, mesh)| *mesh).collect();
        files(tensors, most, RankParts::Placed(of, vec![mesh(0), mesh(1)])).expect("files")
    }

    fn files(tensors: &[(&[u64], Option<usize>)], most: u64, parts: RankParts) -> Result<ShardedSave> {
        let declare = |(number, (shape, _)): (usize, &(&[u64], _))| DeclaredTensor {
            name: format!("t{number}"),
            stored: StoredElements::Plain(DType::Float32),
            shape: shape.to_vec(),
        };
        let declared = tensors.iter().enumerate().map(declare).collect();
        let (stem, to) = ("model".to_owned(), SaveDestination::default());
        let folder = ShardedFolder { path: "folder".into(), stem, most, options: WriteOptions::default(), to };
        ShardedSave::new(folder, declared, &BTreeMap::new(), (parts, WORLD))
    }

    fn byte(at: u64) -> u8 {
        (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8 | 1
    }

    /// The expected contents of a file.
    fn image(save: &ShardedSave, file: usize) -> Vec<u8> {
        let mut bytes = vec![0; save.file_bytes(file) as usize];
        bytes[..save.header(file).len()].copy_from_slice(save.header(file));
        for number in (0..save.tensors().len()).filter(|&number| save.file(number) == file) {
            save.range(number).for_each(|at| bytes[at as usize] = byte(at));
        }
        bytes
    }

    /// The part of each tensor that a rank writes, before the exchange.
    fn parts(save: &ShardedSave, rank: u32) -> Vec<Buffer> {
        let part = |(number, own): (usize, RankShare)| {
            let mut bytes = vec![0; own.bytes as usize];
            for rows in own.moves {
                for (row, at) in (0..rows.rows).flat_map(|row| (0..rows.len).map(move |at| (row, at))) {
                    let from = save.range(number).start + rows.from + row * rows.from_stride + at;
                    bytes[(rows.to + row * rows.to_stride + at) as usize] = byte(from);
                }
            }
            let storage = Storage::of_bytes(&bytes).expect("memory");
            Buffer::contiguous_at(storage, 0, DType::UInt8, &[bytes.len() as i64]).expect("a part")
        };
        save.written(rank).expect("written").into_iter().map(part).collect()
    }

    /// All stripes that ranks write after the exchange: file, range, bytes.
    fn exchanged(save: &ShardedSave, pieces: &AllToAll) -> Vec<(usize, Range<u64>, Vec<u8>)> {
        let parts: Vec<_> = (0..WORLD).map(|rank| parts(save, rank)).collect();
        let mut written = Vec::new();
        for round in 0..pieces.rounds() {
            let sizes: Vec<_> = (0..WORLD).map(|rank| pieces.sizes(save, round, rank).expect("sizes")).collect();
            let messages: Vec<Vec<u8>> = (0..WORLD)
                .map(|rank| {
                    let mut message = vec![0; sizes[rank as usize].0.iter().sum::<u64>() as usize];
                    let own = &parts[rank as usize];
                    pieces.gather(save, (round, rank), own, &mut message, &uninterrupted).expect("sent");
                    message
                })
                .collect();
            for rank in 0..WORLD as usize {
                let mut arrived = Vec::new();
                for (peer, message) in messages.iter().enumerate() {
                    let start = sizes[peer].0[..rank].iter().sum::<u64>() as usize;
                    let len = sizes[peer].0[rank];
                    assert_eq!(len, sizes[rank].1[peer], "sent sizes match received sizes");
                    arrived.extend_from_slice(&message[start..start + len as usize]);
                }
                let at = (round, rank as u32);
                let own = pieces.assembled(save, at, &parts[rank], &arrived, &uninterrupted).expect("pieces");
                for (piece, mut block) in own {
                    written.push((piece.file, piece.range.clone(), block.as_mut_slice().to_vec()));
                }
            }
        }
        written
    }

    const TENSORS: [(&[u64], Option<usize>); 6] =
        [(&[7, 9], Some(1)), (&[5, 3], Some(0)), (&[11], None), (&[2, 4], Some(0)), (&[0, 3], Some(1)), (&[], None)];

    #[test]
    fn parts_of_uploads_are_the_bytes_of_the_file_each_by_one_rank() {
        for (most, part) in [(u64::MAX, 64), (100, 40), (u64::MAX, 1 << 20)] {
            let save = save(&TENSORS, most);
            let files = (0..save.tensors().len()).map(|number| save.file(number)).max().unwrap_or(0) + 1;
            let pieces = AllToAll::new(&save, &vec![Some(part); files]).expect("pieces");
            let mut written = exchanged(&save, &pieces);
            written.sort_by_key(|(file, range, _)| (*file, range.start));
            for file in 0..files {
                let of_file = written.iter().filter(|(of, ..)| *of == file);
                let bytes: Vec<u8> = of_file.flat_map(|(_, _, bytes)| bytes.iter().copied()).collect();
                assert!(bytes == image(&save, file), "file {file} of parts of {part}");
            }
            let all: u64 = (0..files).map(|file| save.file_bytes(file)).sum();
            assert_eq!((0..WORLD).map(|rank| pieces.bytes(rank)).sum::<u64>(), all);
        }
    }

    #[test]
    fn boxes_of_which_a_rank_has_several_or_none_are_the_bytes_of_the_file() {
        let boxes = vec![
            vec![
                (2, std::iter::once(0..11).collect()),
                (0, vec![0..7, 0..2]),
                (0, vec![3..7, 5..9]),
                (4, vec![0..0, 0..3]),
            ],
            vec![(1, vec![0..5, 0..3]), (0, vec![0..3, 2..9]), (5, Vec::new())],
            vec![(3, vec![0..2, 0..4]), (0, vec![3..7, 2..5])],
        ];
        for part in [40, 1 << 20] {
            let save = files(&TENSORS, u64::MAX, RankParts::Boxes(boxes.clone())).expect("files");
            let pieces = AllToAll::new(&save, &[Some(part)]).expect("pieces");
            let mut written = exchanged(&save, &pieces);
            written.sort_by_key(|(_, range, _)| range.start);
            let bytes: Vec<u8> = written.into_iter().flat_map(|(.., bytes)| bytes).collect();
            assert!(bytes == image(&save, 0), "parts of {part}");
        }
        let error = |boxes| files(&TENSORS, u64::MAX, RankParts::Boxes(boxes)).expect_err("refused").to_string();
        assert!(error(boxes[..2].to_vec()).contains("the boxes are for another number of ranks"));
        assert!(error(vec![vec![(6, Vec::new())], Vec::new(), Vec::new()]).contains("tensor 6 does not exist"));
        let boxes = vec![vec![(2, std::iter::once(1..12).collect())], Vec::new(), Vec::new()];
        let outside = files(&TENSORS, u64::MAX, RankParts::Boxes(boxes)).expect("files");
        let error = outside.written(0).expect_err("11 elements").to_string();
        assert!(error.contains("tensor 't2': a tensor of the shape [11] has no box [1..12]"), "{error}");
    }

    #[test]
    fn short_rows_of_files_on_a_disk_are_exchanged_and_nothing_else() {
        let tensors: [(&[u64], _); 4] =
            [(&[3000, 700], Some(1)), (&[90, 60], Some(1)), (&[300, 500], Some(0)), (&[3100, 2600], Some(1))];
        let save = save(&tensors, u64::MAX);
        let pieces = AllToAll::new(&save, &[None]).expect("pieces");
        assert_eq!([0, 1, 2, 3].map(|number| pieces.has(number)), [true, true, false, true]);
        let image = image(&save, 0);
        let written = exchanged(&save, &pieces);
        for (_, range, bytes) in &written {
            assert!(*bytes == image[range.start as usize..range.end as usize], "{range:?}");
            assert!(range.end - range.start <= PIECE + PIECE / 2);
        }
        for number in [0, 1, 3] {
            let range = save.range(number);
            let covered =
                written.iter().map(|(_, own, _)| own.end.min(range.end).saturating_sub(own.start.max(range.start)));
            assert_eq!(covered.sum::<u64>(), range.end - range.start, "tensor {number}");
        }
    }
}
