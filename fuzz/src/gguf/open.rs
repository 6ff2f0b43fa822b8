//! Target `gguf_open`: a file is opened, listed, walked, printed, and every tensor read and decoded by both backends.

use std::fs;
use std::path::Path;

use max_weights::checkpoint::{Backend, Checkpoint, OpenOptions};
use max_weights::dtype::DType;
use max_weights::format::HeaderOptions;
use max_weights::quant::{Encoding, dequantize, elements, swap_bytes};
use max_weights::tensor::{Element, TensorInfo};

use super::super::folder::in_folder;
use super::super::open::{check_catalog, check_error, check_findings, check_twice, open};
use super::super::{check_message, memory};

/// A file that opens gives, by either backend, the bytes at the places of its tensors, in the order of this machine. Blocks decode
/// alone to the same values as together, and the names lead to their tensors. An error says why and where.
pub fn check(input: &[u8]) {
    in_folder(|folder| {
        let path = &folder.join("input.gguf");
        fs::write(path, input).expect("room for the input");
        let mut verdicts = Vec::new();
        for strict in [true, false] {
            for backend in [Backend::Map, Backend::Read] {
                let format =
                    HeaderOptions { policy: max_weights::error::Policy::new(strict), ..HeaderOptions::default() };
                let options = OpenOptions::default().backend(backend).format(format);
                verdicts.push(memory::bounded(input.len(), || run(input, path, &options)));
            }
        }
        assert_eq!(verdicts[0], verdicts[1], "mapped and read");
        assert_eq!(verdicts[2], verdicts[3], "mapped and read");
        assert!(verdicts[0].is_none() || verdicts[0] == verdicts[2], "refused only when not strict");
        memory::bounded(input.len(), || check_findings(path));
        if verdicts[2].is_some() {
            memory::bounded_files(input.len(), 2, |_| check_twice(path));
        }
    });
}

/// What the tensors hold, decoded, if the file opens.
fn run(input: &[u8], path: &Path, options: &OpenOptions) -> Option<Vec<Vec<u8>>> {
    let checkpoint = match open(path, options) {
        Ok(checkpoint) => checkpoint,
        Err(error) => {
            check_error(&error, path);
            return None;
        }
    };
    if options.backend == Backend::Map && options.format.policy == max_weights::error::Policy::Lenient {
        check_catalog(&checkpoint);
        let catalog = checkpoint.catalog();
        catalog.findings().iter().for_each(|finding| check_message(&finding.to_string()));
        if let Some(gguf) = catalog.gguf() {
            assert_eq!(gguf.metadata.iter().count(), gguf.metadata.len());
        }
    }
    Some(decoded(&checkpoint, input))
}

fn decoded(checkpoint: &Checkpoint, input: &[u8]) -> Vec<Vec<u8>> {
    let big_endian = checkpoint.catalog().gguf().is_some_and(|gguf| gguf.big_endian);
    let table = checkpoint.catalog().table();
    let tensor = |(number, info): (usize, TensorInfo<'_>)| {
        let buffer = checkpoint.tensor(number).expect("memory");
        let bytes = buffer.bytes().expect("contiguous");
        let stored = &input[info.span.start() as usize..info.span.end() as usize];
        if big_endian {
            check_order(stored, bytes, info.element);
        } else {
            assert_eq!(bytes, stored, "{}", info.name);
        }
        match info.element {
            Element::Packed(encoding) => decode(encoding, bytes),
            Element::Plain(dtype) => {
                assert_eq!(buffer.dtype(), dtype);
                assert!(buffer.is_aligned() || buffer.size() == 0, "{}", info.name);
                bytes.to_vec()
            }
            _ => bytes.to_vec(),
        }
    };
    table.iter().enumerate().map(tensor).collect()
}

/// The bytes of a tensor of a big-endian file are those that are stored, in the other order.
fn check_order(stored: &[u8], bytes: &[u8], element: Element<'_>) {
    let mut swapped = stored.to_vec();
    match element {
        Element::Plain(dtype) => {
            let item = dtype.bytes().expect("whole bytes");
            swapped.chunks_exact_mut(item).for_each(<[u8]>::reverse);
        }
        Element::Packed(encoding) => {
            swap_bytes(encoding, &mut swapped);
            let mut again = swapped.clone();
            swap_bytes(encoding, &mut again);
            assert_eq!(again, stored, "{encoding}, swapped twice");
        }
        _ => {}
    }
    assert_eq!(bytes, swapped);
}

/// Blocks as f32, all of them together and each by itself, and in the narrower types.
fn decode(encoding: Encoding, blocks: &[u8]) -> Vec<u8> {
    let count = elements(encoding, blocks.len()).expect("whole blocks");
    let to = |dtype: DType, blocks: &[u8], count: usize| {
        let mut out = vec![0; count * dtype.bits() / 8];
        dequantize(encoding, blocks, dtype, &mut out, false).expect("whole blocks");
        out
    };
    let whole = to(DType::Float32, blocks, count);
    for dtype in [DType::Float16, DType::BFloat16] {
        assert_eq!(to(dtype, blocks, count).len(), count * 2);
    }
    let each = encoding.elements_per_block();
    for (block, values) in blocks.chunks(encoding.bytes_per_block()).zip(whole.chunks(each * 4)) {
        assert_eq!(to(DType::Float32, block, each), values, "{encoding}, one block");
    }
    whole
}
