//! Target `torch_open`: a file of PyTorch is opened as a checkpoint, listed, printed, and every tensor of it taken by both backends.
//!
//! Its changes rewrite archives (`archive.rs`), so that members are compressed, repeated and lied about, and still found.

use std::fs;
use std::path::Path;

use max_weights::buffer::Buffer;
use max_weights::checkpoint::{Backend, Checkpoint, OpenOptions};
use max_weights::error::Error;
use max_weights::format::HeaderOptions;
use max_weights::tensor::{Element, TensorInfo, View};
use max_weights::workers::uninterrupted;

use super::folder::in_folder;
use super::open::{check_catalog, check_error, check_findings, check_twice, open};
use super::{check_message, memory};

/// Elements of a tensor that are looked at; an expanded one can have any number.
const LOOKED_AT: usize = 1 << 14;
/// Bytes that the memory of a storage may be longer than the storage.
const SPARE: usize = 4096;

/// The result of a file: the bytes of each tensor, `None` for one that cannot be taken.
type Outcome = Option<Vec<Option<Vec<u8>>>>;

/// A file that opens gives the same tensors by either backend, with the elements where strides and storage place them. Tensors that
/// cannot be taken have a reason. Memory is in proportion to the file and to the tensors taken.
pub fn check(input: &[u8]) {
    in_folder(|folder| {
        let path = &folder.join("input.pt");
        fs::write(path, input).expect("room for the input");
        let outcomes = [(true, Backend::Map), (true, Backend::Read), (false, Backend::Map), (false, Backend::Read)];
        let outcomes = outcomes.map(|(strict, backend)| {
            let format = HeaderOptions { policy: max_weights::error::Policy::new(strict), ..HeaderOptions::default() };
            let options = OpenOptions::default().backend(backend).format(format);
            memory::bounded_taking(input.len(), |taken| run(input, path, &options, taken))
        });
        assert_eq!(outcomes[0], outcomes[1], "mapped and read");
        assert_eq!(outcomes[2], outcomes[3], "mapped and read");
        assert!(outcomes[0].is_none() || outcomes[0] == outcomes[2], "refused only when not strict");
        memory::bounded(input.len(), || check_findings(path));
        if outcomes[2].is_some() {
            memory::bounded_files(input.len(), 2, |_| check_twice(path));
        }
    });
}

fn run(input: &[u8], path: &Path, options: &OpenOptions, taken: &mut usize) -> Outcome {
    let checkpoint = match open(path, options) {
        Ok(checkpoint) => checkpoint,
        Err(error) => {
            check_error(&error, path);
            return None;
        }
    };
    if options.backend == Backend::Map && options.format.policy == max_weights::error::Policy::Lenient {
        check_catalog(&checkpoint);
        checkpoint.catalog().findings().iter().for_each(|finding| check_message(&finding.to_string()));
    }
    Some(take_all(&checkpoint, input, path, taken))
}

fn take_all(checkpoint: &Checkpoint, input: &[u8], path: &Path, taken: &mut usize) -> Vec<Option<Vec<u8>>> {
    let (mut all, mut largest) = (Vec::new(), 0);
    for (number, info) in checkpoint.catalog().table().iter().enumerate() {
        let claimed = info.view.map_or(0, |View { storage, inflated, .. }| inflated.unwrap_or(storage.len())) as usize;
        let buffer = match checkpoint.tensor(number) {
            Ok(buffer) => buffer,
            Err(error) => {
                check_refused(&error, path);
                // What was reserved for it, and not touched.
                largest = largest.max(claimed);
                all.push(None);
                continue;
            }
        };
        let storage = buffer.storage();
        assert!(storage.is_mapped() || storage.len() <= claimed + SPARE, "{} bytes for {claimed}", storage.len());
        if !storage.is_mapped() {
            // A whole inflated storage stays in memory until the tensor's bytes are copied out of it.
            let inflated = info.view.and_then(|view| view.inflated).unwrap_or_default() as usize;
            largest = largest.max(storage.len() + inflated);
        }
        all.push(elements(&buffer, &info, input, checkpoint, taken));
    }
    *taken += largest;
    all
}

/// A tensor that cannot be taken: what it is, or what is wrong with its storage.
fn check_refused(error: &Error, path: &Path) {
    let fault = error.diagnostic().expect("a fault");
    assert_eq!(fault.path.as_deref(), Some(path), "{fault}");
    assert!(!fault.help.is_empty(), "{fault}");
    check_message(&error.to_string());
}

/// The elements of a tensor, which are where its view says; none if there are too many to look at.
fn elements(
    buffer: &Buffer,
    info: &TensorInfo<'_>,
    input: &[u8],
    checkpoint: &Checkpoint,
    taken: &mut usize,
) -> Option<Vec<u8>> {
    if buffer.elements() > LOOKED_AT || buffer.shape().iter().any(|dim| *dim as usize > LOOKED_AT) {
        return None;
    }
    let copied = buffer.copy(&uninterrupted).expect("memory");
    *taken += copied.size();
    let bytes = copied.bytes().expect("contiguous").to_vec();
    let View { strides, storage, inflated, start } = info.view.expect("a tensor that was taken");
    let big_endian = checkpoint.catalog().torch(info.file).is_some_and(|torch| torch.big_endian);
    if let (Element::Plain(dtype), None, false) = (info.element, inflated, big_endian)
        && let Some(item) = dtype.bytes()
    {
        let mut places = vec![storage.start() + start];
        for (dim, stride) in info.shape.iter().zip(strides) {
            places = places.iter().flat_map(|at| (0..*dim).map(move |i| at + i * stride * item as u64)).collect();
        }
        let plain: Vec<u8> = places.iter().flat_map(|at| &input[*at as usize..][..item]).copied().collect();
        assert_eq!(bytes, plain, "{}", info.name);
    }
    Some(bytes)
}
