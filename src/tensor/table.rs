//! The tensors of a checkpoint, compactly: a quarter of a million of them are a benchmarked case.

use super::{Element, Span, TensorInfo, View};
use crate::budget::{self, Short};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// One entry of [`TensorTable`]: 40 bytes a tensor, in addition to its name and dims in the arenas.
#[derive(Debug, Clone, Copy)]
struct TableEntry {
    start: u64,
    len: u64,
    name_start: u32,
    name_len: u32,
    dims_start: u32,
    file: u32,
    /// Index of the dtype, or `SPECIAL` + index into `special`, or `UNKNOWN` + index into `unknown`; with `VIEW` if a view is behind the dims.
    element: u32,
    rank: u32,
}

const SPECIAL: u32 = 1 << 8;
const UNKNOWN: u32 = 1 << 16;
const VIEW: u32 = 1 << 31;
/// Words of a view behind its strides: start and length of the storage, its inflated length, the start of the tensor in it.
const VIEW_WORDS: usize = 4;
/// The inflated length of a storage that is not deflated.
const STORED: u64 = u64::MAX;

/// The tensors of a checkpoint, compactly: a quarter of a million of them are a benchmarked case.
#[derive(Debug, Clone, Default)]
pub struct TensorTable {
    names: String,
    dims: Vec<u64>,
    entries: Vec<TableEntry>,
    /// The distinct elements that are neither plain nor unknown: there are a few hundred.
    special: Vec<Element<'static>>,
    unknown: Vec<Box<str>>,
}

impl TensorTable {
    /// An empty table with room for `tensors` entries with `name_bytes` bytes of names.
    pub fn with_capacity(tensors: usize, name_bytes: usize) -> Result<Self> {
        let mut table = Self::default();
        table.names.try_reserve_exact(name_bytes).map_err(|_| Short::System(name_bytes))?;
        table.dims = budget::list(tensors.saturating_mul(2))?;
        table.entries = budget::list(tensors)?;
        Ok(table)
    }

    /// Adds a tensor; its number is the former [`TensorTable::len`].
    pub fn push(&mut self, info: &TensorInfo<'_>) -> Result<()> {
        let element = match info.element {
            Element::Plain(dtype) => dtype.index() as u32,
            Element::Packed(encoding) => self.special(Element::Packed(encoding)),
            Element::Torch(dtype) => self.special(Element::Torch(dtype)),
            Element::NoArray(kind, dtype) => self.special(Element::NoArray(kind, dtype)),
            Element::Unknown(name) => self.unknown(name)?,
        };
        self.names.try_reserve(info.name.len()).map_err(|_| Short::System(info.name.len()))?;
        let of_view = info.view.map_or(0, |view| view.strides.len() + VIEW_WORDS);
        budget::reserve(&mut self.dims, info.shape.len() + of_view)?;
        budget::reserve(&mut self.entries, 1)?;
        self.entries.push(TableEntry {
            start: info.span.start,
            len: info.span.len,
            name_start: u32::try_from(self.names.len()).map_err(|_| full())?,
            name_len: u32::try_from(info.name.len()).map_err(|_| full())?,
            dims_start: u32::try_from(self.dims.len()).map_err(|_| full())?,
            file: info.file,
            element: element | if info.view.is_some() { VIEW } else { 0 },
            rank: u32::try_from(info.shape.len()).map_err(|_| full())?,
        });
        self.names.push_str(info.name);
        self.dims.extend_from_slice(info.shape);
        if let Some(View { strides, storage, inflated, start }) = info.view {
            debug_assert_eq!(strides.len(), info.shape.len());
            self.dims.extend_from_slice(strides);
            self.dims.extend([storage.start, storage.len, inflated.unwrap_or(STORED), start]);
        }
        Ok(())
    }

    fn special(&mut self, element: Element<'static>) -> u32 {
        let known = self.special.iter().position(|have| *have == element);
        let position = known.unwrap_or_else(|| {
            self.special.push(element);
            self.special.len() - 1
        });
        SPECIAL + position as u32
    }

    fn unknown(&mut self, name: &str) -> Result<u32> {
        let known = self.unknown.iter().position(|have| &**have == name);
        let position = known.unwrap_or_else(|| {
            self.unknown.push(name.into());
            self.unknown.len() - 1
        });
        let number = UNKNOWN.checked_add(u32::try_from(position).map_err(|_| full())?);
        number.filter(|number| *number < VIEW).ok_or_else(full)
    }

    /// Adds all tensors of `other`, as those of file number `file`.
    pub fn append(&mut self, other: &Self, file: u32) -> Result<()> {
        budget::reserve(&mut self.entries, other.len())?;
        budget::reserve(&mut self.dims, other.dims.len())?;
        self.names.try_reserve(other.names.len()).map_err(|_| Short::System(other.names.len()))?;
        let (names, dims) = (self.names.len(), self.dims.len());
        self.names.push_str(&other.names);
        self.dims.extend_from_slice(&other.dims);
        let behind = |start: u32, before: usize| u32::try_from(start as usize + before).map_err(|_| full());
        for entry in &other.entries {
            let (name_start, dims_start) = (behind(entry.name_start, names)?, behind(entry.dims_start, dims)?);
            let element = match entry.element & !VIEW {
                number @ UNKNOWN.. => self.unknown(&other.unknown[(number - UNKNOWN) as usize])?,
                number @ SPECIAL.. => self.special(other.special[(number - SPECIAL) as usize]),
                plain => plain,
            };
            let element = element | entry.element & VIEW;
            self.entries.push(TableEntry { name_start, dims_start, file, element, ..*entry });
        }
        Ok(())
    }

    /// Its size in memory.
    pub fn bytes(&self) -> usize {
        budget::vec_bytes(&self.dims) + budget::vec_bytes(&self.entries) + self.names.capacity()
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True for a table without tensors.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The name of tensor `i`.
    #[inline]
    pub fn name(&self, i: usize) -> &str {
        let entry = &self.entries[i];
        &self.names[entry.name_start as usize..][..entry.name_len as usize]
    }

    /// Tensor `i`.
    #[inline]
    pub fn get(&self, i: usize) -> TensorInfo<'_> {
        let entry = &self.entries[i];
        let element = match entry.element & !VIEW {
            number @ UNKNOWN.. => Element::Unknown(&self.unknown[(number - UNKNOWN) as usize]),
            number @ SPECIAL.. => self.special[(number - SPECIAL) as usize],
            index => Element::Plain(DType::from_index(index as usize)),
        };
        let (rank, dims) = (entry.rank as usize, &self.dims[entry.dims_start as usize..]);
        TensorInfo {
            name: self.name(i),
            element,
            shape: &dims[..rank],
            file: entry.file,
            span: Span { start: entry.start, len: entry.len },
            view: (entry.element & VIEW != 0).then(|| view(&dims[rank..], rank)),
        }
    }

    /// Whether two tensors have elements of one type, and one shape.
    #[inline]
    pub fn are_alike(&self, a: usize, b: usize) -> bool {
        let dims =
            |i: usize| self.dims[self.entries[i].dims_start as usize..].iter().take(self.entries[i].rank as usize);
        // Shapes are short: a loop here is faster than a call.
        self.entries[a].element & !VIEW == self.entries[b].element & !VIEW && dims(a).eq(dims(b))
    }

    /// Every tensor, in the table's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = TensorInfo<'_>> {
        (0..self.len()).map(|i| self.get(i))
    }

    /// Keeps the tensors whose number `keep` accepts, and renumbers them.
    pub fn retain(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let mut number = 0;
        self.entries.retain(|_| {
            number += 1;
            keep(number - 1)
        });
    }

    /// Sorts the tensors into file order: by file, then offset, then the shorter first (empty tensors before what starts at the same byte).
    pub fn sort_by_offset(&mut self) -> Result<()> {
        // The sort allocates as much again, and cannot fail gracefully.
        budget::probe(size_of_val(self.entries.as_slice()))?;
        self.entries.sort_by_key(|entry| (entry.file, entry.start, entry.len));
        Ok(())
    }
}

fn full() -> Error {
    Error::Argument("the names or shapes of the tensors take more than 4 GiB: open fewer files".into())
}

/// The view whose strides begin `words`.
fn view(words: &[u64], rank: usize) -> View<'_> {
    let (strides, rest) = words.split_at(rank);
    let [start_of_storage, len, inflated, start] = *rest.first_chunk::<VIEW_WORDS>().unwrap_or(&[0; VIEW_WORDS]);
    View {
        strides,
        storage: Span { start: start_of_storage, len },
        inflated: (inflated != STORED).then_some(inflated),
        start,
    }
}

#[cfg(test)]
mod tests {
    use super::super::TorchDType;
    use super::*;

    #[test]
    fn views_come_back_as_they_were_given_and_tables_keep_them_when_they_are_joined() {
        let storage = Span::within(1000, 64, 400).expect("inside");
        let strided = TensorInfo {
            name: "a",
            element: Element::Plain(DType::Float32),
            shape: &[3, 2],
            file: 0,
            span: Span::within(1000, 72, 24).expect("inside"),
            view: Some(View { strides: &[1, 3], storage, inflated: None, start: 8 }),
        };
        let deflated = TensorInfo {
            name: "b",
            element: Element::Torch(TorchDType::Complex128),
            shape: &[],
            view: Some(View { strides: &[], storage, inflated: Some(7), start: 0 }),
            ..strided
        };
        let plain = TensorInfo { name: "c", shape: &[6], view: None, ..strided };
        let unknown = TensorInfo { name: "d", element: Element::Unknown("F6"), ..plain };
        let other = TensorInfo { element: Element::Unknown("F7"), ..unknown };
        let mut table = TensorTable::default();
        let mut joined = TensorTable::default();
        for info in [&strided, &plain, &deflated, &unknown] {
            table.push(info).expect("room");
        }
        joined.push(&other).expect("room");
        joined.append(&table, 0).expect("room");
        joined.append(&table, 1).expect("room");
        assert_eq!((table.get(0), table.get(1), table.get(2)), (strided, plain, deflated));
        assert_eq!(joined.get(0), other);
        for (number, info) in table.iter().enumerate() {
            assert_eq!(joined.get(1 + number), info);
            assert_eq!(joined.get(5 + number), TensorInfo { file: 1, ..info });
        }
        assert_eq!((strided.bytes(), plain.bytes(), deflated.bytes()), (24, 24, 7));
        assert!(strided.is_aligned() && !deflated.is_aligned());
    }
}
