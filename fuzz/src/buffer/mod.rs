//! Target `buffer`: a tensor of any dtype, shape, strides and offset over a storage, and a sequence of operations on it. Each is
//! compared with a plain model that knows the place of every element and works sequentially.

mod model;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use max_weights::buffer::{Buffer, IndexPart, dequantize};
use max_weights::cast::{CastOptions, cast_by_oracle, elements_per_group, is_supported};
use max_weights::dtype::DType;
use max_weights::error::Error;
use max_weights::memory::{Block, Exclusive, Storage};
use max_weights::quant::{self, Encoding};
use max_weights::source::{LocalFile, Source};
use max_weights::workers::uninterrupted;

use self::model::Model;
use super::folder::in_folder;
use super::program::Program;
use super::{check_message, memory};

/// Things done with one tensor.
const STEPS: usize = 6;
/// Elements of a tensor that are looked at one by one.
const LOOKED_AT: u64 = 4096;

/// What an input says is done; every element that comes out is the one that the model has, and what the model refuses is an error.
pub fn check(input: &[u8]) {
    memory::bounded(input.len(), || {
        let mut program = Program::new(input);
        let bytes = program.content();
        if program.one_in(4) {
            in_folder(|folder| run(&mut program, &mapped(folder, &bytes)));
        } else {
            run(&mut program, &Storage::of_bytes(&bytes).expect("memory"));
        }
    });
}

/// The bytes as a file that is mapped.
fn mapped(folder: &Path, bytes: &[u8]) -> Arc<Storage> {
    let path = folder.join("storage");
    fs::write(&path, bytes).expect("room for the storage");
    LocalFile::open(&path).expect("a file").mapping().expect("a mapping").clone()
}

fn run(program: &mut Program<'_>, storage: &Arc<Storage>) {
    let Some((mut buffer, mut model)) = make(program, storage) else { return };
    for _ in 0..STEPS {
        if program.is_at_end() {
            break;
        }
        let next = match program.below(8) {
            0..=2 => index(program, &buffer, &model),
            3 => view(program, &buffer, &model),
            4 => Some(copied(program, &buffer, &model)),
            5 => converted(program, &buffer, &model),
            6 => converted_into(program, &buffer, &model),
            _ => dequantized(program, &buffer, &model),
        };
        if let Some(next) = next {
            (buffer, model) = next;
        }
        compare(&buffer, &model);
    }
}

/// A tensor over the storage, if one of the requested tensors is inside it.
fn make(program: &mut Program<'_>, storage: &Arc<Storage>) -> Option<(Buffer, Model)> {
    let (dtype, offset) = (program.dtype(), program.offset(storage.len()));
    let shape = program.shape();
    let strides = if program.one_in(3) { None } else { Some(program.strides(&shape)) };
    let made = match &strides {
        Some(strides) => Buffer::strided_at(storage.clone(), offset, dtype, &shape, strides),
        None => Buffer::contiguous_at(storage.clone(), offset, dtype, &shape),
    };
    let expected = Model::is_inside(storage.len(), offset, dtype, &shape, strides.as_deref());
    let buffer = match made {
        Ok(buffer) => buffer,
        Err(error) => {
            assert!(!expected, "{error}, but {dtype} of {shape:?}, {strides:?} at {offset} is inside");
            check_message(&error.to_string());
            return None;
        }
    };
    assert!(expected, "{dtype} of {shape:?}, {strides:?} at {offset} is outside of {} bytes", storage.len());
    // No element is touched here: the answer is immediate for any shape.
    buffer.prefetch(&uninterrupted).expect("advice");
    if !is_small(&shape) {
        let last = vec![IndexPart::At(-1); shape.len()];
        if let Ok(last) = buffer.index(&last) {
            assert_eq!(last.copy(&uninterrupted).expect("one element").size(), dtype.bits() / 8);
        }
        return None;
    }
    let model = Model::new(all(storage), offset, dtype, &shape, strides.as_deref());
    compare(&buffer, &model);
    Some((buffer, model))
}

/// True if every element can be looked at.
fn is_small(shape: &[i64]) -> bool {
    let product = shape.iter().try_fold(1u64, |product, dim| product.checked_mul((*dim).unsigned_abs().max(1)));
    product.is_some_and(|product| product <= LOOKED_AT)
}

/// The tensor has the shape and the elements of the model, however one comes by them.
fn compare(buffer: &Buffer, model: &Model) {
    assert_eq!((buffer.dtype(), buffer.shape()), (model.dtype, &model.shape[..]));
    assert_eq!(buffer.elements(), model.count());
    assert_eq!(buffer.is_contiguous(), model.is_contiguous(), "{buffer:?}");
    let elements = model.elements();
    assert_eq!(buffer.copy(&uninterrupted).expect("memory").bytes(), Some(&elements[..]), "{buffer:?}");
    if buffer.is_contiguous() {
        assert_eq!(buffer.bytes(), Some(&elements[..]), "{buffer:?}");
    }
}

type Next = Option<(Buffer, Model)>;

fn index(program: &mut Program<'_>, buffer: &Buffer, model: &Model) -> Next {
    let expression: Vec<IndexPart> = (0..program.below(5)).map(|_| program.index()).collect();
    let (found, expected) = (buffer.index(&expression), model.index(&expression));
    match (found, expected) {
        (Ok(view), Some(expected)) => {
            assert!(Arc::ptr_eq(view.storage(), buffer.storage()), "always a view");
            Some((view, expected))
        }
        (Err(error), None) => {
            check_message(&error.to_string());
            None
        }
        (found, expected) => panic!("{expression:?} of {buffer:?}: {found:?}, but the model has {expected:?}"),
    }
}

fn view(program: &mut Program<'_>, buffer: &Buffer, model: &Model) -> Next {
    let dtype = program.dtype();
    let shape = if program.one_in(2) { None } else { Some(program.shape()) };
    if shape.as_deref().is_some_and(|shape| !is_small(shape)) {
        return None;
    }
    match (buffer.view(dtype, shape.as_deref()), model.view(dtype, shape.as_deref())) {
        (Ok(view), Some(expected)) => Some((view, expected)),
        (Err(_), None) => None,
        (found, expected) => panic!("view as {dtype}, {shape:?} of {buffer:?}: {found:?}, not {expected:?}"),
    }
}

/// A copy, in which every element has its old value.
fn copied(program: &mut Program<'_>, buffer: &Buffer, model: &Model) -> (Buffer, Model) {
    let elements = model.elements();
    if program.one_in(3) {
        let same = buffer.contiguous(&uninterrupted).expect("memory");
        assert_eq!(same.bytes(), Some(&elements[..]));
        assert_eq!(same.as_ptr() == buffer.as_ptr(), buffer.is_contiguous() && buffer.is_aligned());
        return (same.clone(), Model::new(all(same.storage()), same.offset(), model.dtype, &model.shape, None));
    }
    (buffer.copy(&uninterrupted).expect("memory"), Model::new(&elements, 0, model.dtype, &model.shape, None))
}

/// The elements as another dtype, each by itself by the oracle; none where the pair has no meaning, or the elements end within a byte.
fn cast_by_model(model: &Model, dtype: DType, saturate: bool) -> Option<Vec<u8>> {
    let group = elements_per_group(model.dtype).max(elements_per_group(dtype));
    let (from, to) = (group * model.dtype.bits() / 8, group * dtype.bits() / 8);
    let (elements, count) = (model.elements(), model.count());
    if !is_supported(model.dtype, dtype) || !(count * dtype.bits()).is_multiple_of(8) || elements.len() % from != 0 {
        return None;
    }
    let options = CastOptions { saturate, ..CastOptions::default() };
    let mut out = vec![0; count * dtype.bits() / 8];
    for (from, to) in elements.chunks(from).zip(out.chunks_mut(to)) {
        cast_by_oracle(model.dtype, dtype, from, to, options).expect("whole groups");
    }
    Some(out)
}

/// True if the elements do not fill whole groups of the types that are packed into bytes: then a conversion may be refused.
fn is_ragged(model: &Model, dtype: DType) -> bool {
    let group = elements_per_group(model.dtype).max(elements_per_group(dtype));
    !model.count().is_multiple_of(group)
}

fn converted(program: &mut Program<'_>, buffer: &Buffer, model: &Model) -> Next {
    let (dtype, saturate) = (program.dtype(), program.one_in(2));
    let found = buffer.astype(dtype, saturate, &uninterrupted);
    if dtype == model.dtype {
        assert_eq!(found.expect("itself").as_ptr(), buffer.as_ptr());
        return None;
    }
    let Some(expected) = cast_by_model(model, dtype, saturate) else {
        assert!(is_ragged(model, dtype) || found.is_err(), "{} to {dtype}", model.dtype);
        return None;
    };
    match found {
        Ok(found) => {
            assert_eq!(found.bytes(), Some(&expected[..]), "{buffer:?} to {dtype}");
            Some((found, Model::new(&expected, 0, dtype, &model.shape, None)))
        }
        Err(error) => panic!("{buffer:?} to {dtype}: {error}"),
    }
}

/// For a call that writes to memory which may be that of its source: it has to see that itself.
fn exclusive(out: &Buffer) -> Exclusive<Buffer> {
    // SAFETY: this thread has the memory for itself, and holds no reference to its bytes: what the model knows is a copy.
    #[allow(unsafe_code)]
    unsafe {
        Exclusive::promised(out.clone())
    }
}

/// All bytes of a storage.
fn all(storage: &Storage) -> &[u8] {
    storage.slice(0, storage.len()).expect("host memory")
}

/// A tensor to write to: over the storage of the source, wherever that leads, or over another.
fn out_of(program: &mut Program<'_>, source: &Buffer, dtype: DType, shape: &[i64]) -> Option<Buffer> {
    let storage =
        if program.one_in(2) { source.storage().clone() } else { Block::zeros(512).expect("memory").freeze() };
    let offset = program.offset(storage.len());
    Buffer::contiguous_at(storage, offset, dtype, shape).ok()
}

/// What an `out` that overlaps its source may be answered with: an error, or the right elements; and where it does not, only these.
fn check_out(source: &Buffer, model: &Model, out: &Buffer, done: Result<(), Error>, expected: &[u8]) {
    let (start, end) = (out.as_ptr() as usize, out.as_ptr() as usize + out.size());
    let (first, last) = model.addresses(source.storage().as_ptr() as usize);
    match done {
        Ok(()) => assert_eq!(out.bytes(), Some(expected), "into {out:?} of {source:?}"),
        Err(error) => {
            check_message(&error.to_string());
            assert!(start < last && first < end, "{error}: {out:?} is apart from {source:?}");
        }
    }
}

fn converted_into(program: &mut Program<'_>, buffer: &Buffer, model: &Model) -> Next {
    let (dtype, saturate) = (program.dtype(), program.one_in(2));
    let out = out_of(program, buffer, dtype, &model.shape)?;
    let expected = cast_by_model(model, dtype, saturate);
    let done = buffer.astype_into(&mut exclusive(&out), saturate, &uninterrupted);
    match expected {
        Some(expected) => check_out(buffer, model, &out, done, &expected),
        None => assert!(is_ragged(model, dtype) || done.is_err(), "{} to {dtype}", model.dtype),
    }
    // What was there may have been written over.
    let bytes = all(buffer.storage());
    Some((buffer.clone(), model.over(bytes)))
}

fn dequantized(program: &mut Program<'_>, buffer: &Buffer, model: &Model) -> Next {
    let encodings: Vec<Encoding> = Encoding::all().collect();
    let encoding = encodings[program.below(encodings.len())];
    let dtype = [DType::Float32, DType::Float16, DType::BFloat16][program.below(3)];
    let blocks = model.elements();
    let count = quant::elements(encoding, blocks.len()).ok()?;
    let shape = [count as i64];
    let mut expected = vec![0; count * dtype.bits() / 8];
    for (block, out) in blocks
        .chunks(encoding.bytes_per_block())
        .zip(expected.chunks_mut(encoding.elements_per_block() * dtype.bits() / 8))
    {
        quant::dequantize(encoding, block, dtype, out, false).expect("a whole block");
    }
    if program.one_in(3) {
        let found = dequantize(buffer, encoding, dtype, &shape, None, &uninterrupted).expect("whole blocks");
        assert_eq!(found.bytes(), Some(&expected[..]), "{encoding}");
        return None;
    }
    let out = out_of(program, buffer, dtype, &shape)?;
    let done = dequantize(buffer, encoding, dtype, &shape, Some(&mut exclusive(&out)), &uninterrupted).map(drop);
    check_out(buffer, model, &out, done, &expected);
    Some((buffer.clone(), model.over(all(buffer.storage()))))
}
