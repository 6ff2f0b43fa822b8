//! Taking tensors: views of the mapping where the file allows it, otherwise memory of their own, shared by the tensors that share it in
//! the file.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::{Backend, Checkpoint};
use crate::buffer::Buffer;
use crate::dtype::DType;
use crate::error::{Error, Fault, Result};
use crate::format::pickle::{StorageRef, TorchDType};
use crate::format::torch::{Place, Torch, swapped_bytes, torch_only};
use crate::format::torch_zip;
use crate::memory::{Block, ForkMutex, Storage, no_memory};
use crate::rules;
use crate::source::Source;
use crate::tensor::{Element, Span, TensorInfo, View};
use crate::workers::Interrupt;

/// What identifies memory that was made: a tensor, or a storage of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Made {
    Tensor(usize),
    /// Tensors of a big-endian file that share a storage share a swapped copy if they swap the same number of bytes.
    Storage {
        file: u32,
        span: Span,
        swapped: usize,
    },
}

/// Memory of their own that somebody still holds, so that taking a tensor twice gives the same.
#[derive(Debug, Default)]
pub(super) struct Taken(ForkMutex<HashMap<Made, Weak<Storage>>>);

impl Taken {
    /// Nobody waits while memory is made: two threads may make the same, and then the first one's stays.
    fn get(&self, key: Made, make: impl FnOnce() -> Result<Arc<Storage>>) -> Result<Arc<Storage>> {
        if let Some(storage) = self.0.lock().get(&key).and_then(Weak::upgrade) {
            return Ok(storage);
        }
        let made = make()?;
        let mut taken = self.0.lock();
        if let Some(storage) = taken.get(&key).and_then(Weak::upgrade) {
            return Ok(storage);
        }
        // Now and then, so that the dead do not add up, and a look at all of them does not either.
        if taken.len() == taken.capacity() {
            taken.retain(|_, storage| storage.strong_count() > 0);
        }
        taken.insert(key, Arc::downgrade(&made));
        Ok(made)
    }
}

impl Checkpoint {
    /// Weight number `number`. A view of the mapping where it is aligned, else memory of its own, read now.
    /// Packed blocks come as bytes, in the shape of [`TensorInfo::byte_shape`]; elements of a type that this version does not know, as one row
    /// of bytes; those of a type that only PyTorch has, with the bytes of an element as the last dimension.
    /// Tensors of a big-endian file come in the order of this machine, in memory of their own.
    pub fn tensor(&self, number: usize) -> Result<Buffer> {
        let info = self.catalog.table.get(number);
        if let Some(torch) = self.catalog.torch(info.file) {
            return self.torch_tensor(torch, &info);
        }
        let (dtype, shape): (DType, Vec<i64>) = match info.element {
            Element::Plain(dtype) => (dtype, signed(info.shape)),
            Element::Packed(_) | Element::Unknown(_) => {
                let shape = info.byte_shape().unwrap_or_else(|| vec![info.span.len()]);
                (DType::UInt8, signed(&shape))
            }
        };
        let (storage, offset) = self.bytes_of(number, &info)?;
        let buffer = Buffer::contiguous_at(storage, offset, dtype, &shape)?;
        if self.catalog.files[info.file as usize].gguf().is_some_and(|gguf| gguf.big_endian) {
            return match info.element {
                Element::Packed(encoding) => buffer.swap_blocks(encoding, &self.options.format.interrupt),
                Element::Plain(_) | Element::Unknown(_) => buffer.swap_bytes(&self.options.format.interrupt),
            };
        }
        Ok(buffer)
    }

    fn file(&self, number: u32) -> Result<&dyn Source> {
        let missing = || Error::MissingFile { path: self.catalog.files[number as usize].path.clone() };
        self.files[number as usize].as_deref().ok_or_else(missing)
    }

    fn bytes_of(&self, number: usize, info: &TensorInfo<'_>) -> Result<(Arc<Storage>, usize)> {
        let file = self.file(info.file)?;
        if self.options.backend == Backend::Map
            && info.is_aligned()
            && let Ok(mapping) = file.mapping()
        {
            return Ok((mapping.clone(), info.span.start() as usize));
        }
        let read = || file.read_span(info.span, &self.options.format.interrupt, |_| ());
        let storage = self.taken.get(Made::Tensor(number), read)?;
        Ok((storage, 0))
    }

    fn torch_tensor(&self, torch: &Torch, info: &TensorInfo<'_>) -> Result<Buffer> {
        let path = &self.catalog.files[info.file as usize].path;
        let Some(View { strides, storage, inflated, start }) = info.view else {
            let why = torch.refused(info.name).unwrap_or("no array in the file");
            let cause = format!("this is {why}, which no array of the file stands for");
            let below = self.catalog.range(info.name).len() > 1;
            let parts = "The arrays that it is made of have names below its own (items() walks them)";
            let load = "max_weights.torch.load gives it as torch does";
            // Of a class of its own: load does not build it either.
            let wrapper = matches!(info.element, Element::Unknown(kind) if kind.starts_with("wrapper "));
            let help = match (below, wrapper) {
                (true, false) => format!("{parts}; {load}"),
                (false, false) => load.to_owned(),
                (true, true) => parts.to_owned(),
                (false, true) => "objects() shows what the file says of it".to_owned(),
            };
            return Err(Fault::new(rules::TORCH_NO_ARRAY, cause).tensor(info.name).path(path).help(help).unsupported());
        };
        let place = torch.place_at(storage, inflated);
        let (dtype, unit) = match info.element {
            Element::Plain(dtype) => (dtype, swapped_bytes(TorchDType::Plain(dtype))),
            Element::Unknown(name) => (DType::UInt8, torch_only(name).map_or(1, swapped_bytes)),
            Element::Packed(_) => (DType::UInt8, 1),
        };
        let unit = if torch.big_endian { unit } else { 1 };
        let (storage, first) = self.storage(info.file, place, unit, info.is_aligned())?;
        let at = first + start as usize;
        let mut shape = signed(info.shape);
        if dtype.bytes().is_none() {
            return Buffer::contiguous_at(storage, at, dtype, &shape);
        }
        let mut strides = signed(strides);
        if let Element::Unknown(name) = info.element {
            let item = torch_only(name).map_or(1, TorchDType::bytes) as i64;
            // The stride of a dimension of one element may be any number, and says nothing.
            for stride in &mut strides {
                *stride = stride.checked_mul(item).unwrap_or(item);
            }
            shape.push(item);
            strides.push(1);
        }
        Buffer::strided_at(storage, at, dtype, &shape, &strides)
    }

    /// All bytes of a storage of a PyTorch file, in the order of this machine for elements of `dtype`.
    pub fn torch_storage(&self, file: u32, number: usize, dtype: TorchDType) -> Result<Buffer> {
        let torch = self.catalog.torch(file).ok_or_else(|| Error::Argument("this is no PyTorch file".into()))?;
        let path = &self.catalog.files[file as usize].path;
        let len = torch.pickled.storages.get(number).map_or(0, StorageRef::bytes);
        if len == 0 {
            return Buffer::zeros(DType::UInt8, &[0]);
        }
        let place = torch.place_of(number).map_err(|error| error.at_path(path))?;
        let unit = if torch.big_endian { swapped_bytes(dtype) } else { 1 };
        let aligned = place.span.start().is_multiple_of(dtype.bytes().min(8));
        let (storage, first) = self.storage(file, place, unit, aligned)?;
        Buffer::contiguous_at(storage, first, DType::UInt8, &[len as i64])
    }

    /// Reads all storages of a PyTorch file into memory of their own, in the order of the file, which is often not that of the pickle.
    /// They are taken from there for as long as the result is held. Nothing, where storages are mapped, or depend on who takes them.
    pub fn torch_storages(&self, number: u32) -> Result<Vec<Buffer>> {
        let Some(torch) = self.catalog.torch(number) else { return Ok(Vec::new()) };
        if torch.big_endian || self.options.backend == Backend::Map {
            return Ok(Vec::new());
        }
        let places =
            (0..torch.pickled.storages.len()).filter_map(|i| torch.place_of(i).ok().map(|place| (place.span, i)));
        let mut places: Vec<(Span, usize)> = places.collect();
        places.sort_unstable_by_key(|(span, _)| span.start());
        places.dedup_by_key(|(span, _)| *span);
        // Advice to read ahead makes this slower: the system sees by itself that the file is read from its start to its end.
        let read = |(_, i): &(Span, usize)| self.torch_storage(number, *i, TorchDType::Plain(DType::UInt8));
        places.iter().map(read).collect()
    }

    /// The memory of a storage, and where in it the storage begins.
    fn storage(&self, number: u32, place: Place, swapped: usize, aligned: bool) -> Result<(Arc<Storage>, usize)> {
        let file = self.file(number)?;
        if self.options.backend == Backend::Map
            && swapped == 1
            && aligned
            && place.inflated.is_none()
            && let Ok(mapping) = file.mapping()
        {
            return Ok((mapping.clone(), place.span.start() as usize));
        }
        let swap = |bytes: &mut [u8]| {
            if swapped > 1 {
                bytes.chunks_exact_mut(swapped).for_each(<[u8]>::reverse);
            }
        };
        let interrupt = &self.options.format.interrupt;
        let storage =
            self.taken.get(Made::Storage { file: number, span: place.span, swapped }, || match place.inflated {
                Some(size) => inflated(file, self.catalog.torch(number), place, size, interrupt, swap),
                None => file.read_span(place.span, interrupt, swap),
            })?;
        Ok((storage, 0))
    }
}

/// A compressed storage, inflated into memory of its own, which `finish` may change before it is shared.
fn inflated(
    file: &dyn Source,
    torch: Option<&Arc<Torch>>,
    place: Place,
    size: u64,
    interrupt: Interrupt<'_>,
    finish: impl FnOnce(&mut [u8]),
) -> Result<Arc<Storage>> {
    let inflate = || -> Result<_> {
        torch.map_or(Ok(()), |torch| torch.check_inflated())?;
        torch_zip::check_ratio(place.span.len(), size)?;
        let compressed = file.read_span(place.span, interrupt, |_| ())?;
        let len = usize::try_from(size).map_err(|_| no_memory(usize::MAX))?;
        let mut block = Block::any(len)?;
        torch_zip::inflate_into(compressed.slice(0, compressed.len())?, block.as_mut_slice(), interrupt)?;
        torch.map_or(Ok(()), |torch| torch.check_crc32(place, torch_zip::crc32(block.as_mut_slice())))?;
        finish(block.as_mut_slice());
        Ok(block.freeze())
    };
    inflate().map_err(|error| error.at_path(file.path()))
}

fn signed(dims: &[u64]) -> Vec<i64> {
    dims.iter().map(|&dim| dim as i64).collect()
}
