//! Tensors that are saved are read back as they were by the safetensors crate and by this one, and the same tensors are the same bytes.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use max_weights::buffer::Buffer;
use max_weights::dtype::DType;
use max_weights::memory::Storage;
use max_weights::write::{
    DeclaredTensor, FileLayout, SaveDestination, SaveTarget, StoredElements, TensorFileWriter, WriteOptions, declare,
    laid_out, save, write_to_memory,
};
use max_weights::{open, uninterrupted};
use proptest::prelude::*;

fn tensor(dtype: DType, shape: &[i64], seed: u8) -> Buffer {
    let bytes = shape.iter().product::<i64>() as usize * dtype.bits() / 8;
    let bytes: Vec<u8> = (0..bytes).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect();
    Buffer::contiguous_at(Storage::of_bytes(&bytes).unwrap(), 0, dtype, shape).unwrap()
}

fn declared(tensors: &[(String, Buffer)]) -> Vec<(DeclaredTensor, Buffer)> {
    tensors.iter().map(|(name, tensor)| (declare(name, tensor), tensor.clone())).collect()
}

fn saved(
    path: &Path,
    tensors: &[(String, Buffer)],
    metadata: &BTreeMap<String, String>,
    options: &WriteOptions,
) -> Vec<u8> {
    let done = AtomicU64::new(0);
    let output = one_file(path, metadata, options);
    save(&declared(tensors), &output, true, &done, &uninterrupted).expect("saved");
    assert_eq!(done.load(Ordering::Relaxed), tensors.iter().map(|(_, tensor)| tensor.size() as u64).sum::<u64>());
    fs::read(path).unwrap()
}

fn one_file(path: &Path, metadata: &BTreeMap<String, String>, options: &WriteOptions) -> SaveTarget {
    SaveTarget::Safetensors { path: path.to_path_buf(), metadata: Some(metadata.clone()), options: *options }
}

fn in_memory(
    tensors: &[(String, Buffer)],
    metadata: Option<&BTreeMap<String, String>>,
    options: &WriteOptions,
) -> Vec<u8> {
    let layout = laid_out(tensors, metadata, options).unwrap();
    let mut bytes = vec![0xee; layout.file_bytes() as usize];
    write_to_memory(&layout, tensors, &mut bytes, &uninterrupted).unwrap();
    bytes
}

fn any_tensor() -> impl Strategy<Value = Buffer> {
    let dtypes: Vec<DType> = DType::all().collect();
    (proptest::sample::select(dtypes), proptest::collection::vec(0..6_i64, 0..4), any::<u8>()).prop_map(
        |(dtype, mut shape, seed)| {
            // Of types of less than a byte, only whole bytes are tensors.
            if dtype.bits() < 8 {
                shape.push(4);
            }
            tensor(dtype, &shape, seed)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_tensors_are_read_back_as_they_were_and_their_order_does_not_matter(
        tensors in proptest::collection::btree_map("[a-z.\u{e9}\"\\\\]{1,12}", any_tensor(), 0..12),
        metadata in proptest::collection::btree_map("[a-z_ ]{1,8}", ".{0,8}", 0..3),
        alignment in proptest::sample::select(vec![8_u64, 64, 4096]),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let options = WriteOptions { alignment, sync: false };
        let mut list: Vec<(String, Buffer)> = tensors.clone().into_iter().collect();
        let bytes = saved(&folder.path().join("a.safetensors"), &list, &metadata, &options);
        list.reverse();
        prop_assert_eq!(&bytes, &saved(&folder.path().join("b.safetensors"), &list, &metadata, &options));

        let (header, found) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        prop_assert_eq!((header + 8) as u64 % alignment, 0);
        let noted = found.metadata().clone().unwrap_or_default().into_iter().collect::<BTreeMap<_, _>>();
        prop_assert_eq!(&noted, &metadata);
        let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let ours = open(folder.path().join("a.safetensors")).unwrap();
        prop_assert_eq!(theirs.names().len(), tensors.len());
        for (name, tensor) in &tensors {
            let view = theirs.tensor(name).unwrap();
            prop_assert_eq!(view.data(), tensor.bytes().unwrap());
            prop_assert_eq!(format!("{:?}", view.dtype()), tensor.dtype().safetensors_name());
            let again = ours.get(name).unwrap();
            prop_assert_eq!((again.dtype(), again.shape()), (tensor.dtype(), tensor.shape()));
            let copied = again.copy(&uninterrupted).unwrap();
            prop_assert_eq!(copied.bytes(), tensor.bytes());
        }
    }

    #[test]
    fn with_the_formats_own_alignment_the_bytes_are_those_of_the_safetensors_crate(
        tensors in proptest::collection::btree_map("[a-z.\u{e9}\"\\\\]{1,12}", any_tensor(), 1..12),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let views = tensors.iter().map(|(name, tensor)| {
            let shape = tensor.shape().iter().map(|dim| *dim as usize).collect();
            let dtype: safetensors::Dtype = serde_json::from_value(tensor.dtype().safetensors_name().into()).unwrap();
            (name.clone(), safetensors::tensor::TensorView::new(dtype, shape, tensor.bytes().unwrap()).unwrap())
        });
        let views: Vec<_> = views.collect();
        let theirs = safetensors::serialize(views.clone(), Some(HashMap::new())).unwrap();
        let list: Vec<(String, Buffer)> = tensors.clone().into_iter().collect();
        let options = WriteOptions { alignment: 8, sync: false };
        prop_assert_eq!(&saved(&folder.path().join("a.safetensors"), &list, &BTreeMap::new(), &options), &theirs);
        prop_assert_eq!(in_memory(&list, Some(&BTreeMap::new()), &options), theirs);
        prop_assert_eq!(in_memory(&list, None, &options), safetensors::serialize(views, None).unwrap());
    }
}

#[test]
fn tensors_with_gaps_are_written_in_c_order() {
    let folder = tempfile::tempdir().unwrap();
    let storage = tensor(DType::Float32, &[300, 500], 1);
    let turned = Buffer::strided_at(storage.storage().clone(), 0, DType::Float32, &[500, 300], &[1, 500]).unwrap();
    let every_second =
        Buffer::strided_at(storage.storage().clone(), 0, DType::Float32, &[300, 250], &[500, 2]).unwrap();
    let tensors = [("turned".to_owned(), turned.clone()), ("second".to_owned(), every_second.clone())];
    let path = folder.path().join("a.safetensors");
    saved(&path, &tensors, &BTreeMap::new(), &WriteOptions::default());
    let file = open(&path).unwrap();
    for (name, tensor) in &tensors {
        let expected = tensor.copy(&uninterrupted).unwrap();
        assert_eq!(file.get(name).unwrap().bytes(), expected.bytes());
    }
    assert_eq!(in_memory(&tensors, Some(&BTreeMap::new()), &WriteOptions::default()), fs::read(&path).unwrap());
}

#[test]
fn memory_of_another_length_and_other_tensors_than_those_of_the_layout_are_refused() {
    let tensors = [("a".to_owned(), tensor(DType::Float32, &[2], 1))];
    let layout = laid_out(&tensors, None, &WriteOptions::default()).unwrap();
    for len in [layout.file_bytes() as usize - 1, layout.file_bytes() as usize + 1] {
        let failed = write_to_memory(&layout, &tensors, &mut vec![0; len], &uninterrupted).expect_err("refused");
        assert!(failed.to_string().contains(&format!("the memory for it has {len}")), "{failed}");
    }
    let mut bytes = vec![0; layout.file_bytes() as usize];
    let failed = write_to_memory(&layout, &[], &mut bytes, &uninterrupted).expect_err("refused");
    assert!(failed.to_string().contains("tensor 'a' is in the layout"), "{failed}");
    let others = [("a".to_owned(), tensor(DType::Float32, &[3], 1))];
    let failed = write_to_memory(&layout, &others, &mut bytes, &uninterrupted).expect_err("refused");
    assert!(failed.to_string().contains("tensor 'a' does not have the size"), "{failed}");
}

#[test]
fn every_tensor_whose_size_is_a_multiple_of_the_alignment_is_aligned() {
    let folder = tempfile::tempdir().unwrap();
    let shapes = [("a", 3), ("b", 4096), ("c", 64), ("d", 65), ("e", 8192), ("f", 1)];
    let tensors = shapes.map(|(name, count)| (name.to_owned(), tensor(DType::UInt8, &[count], 7)));
    for alignment in [64, 4096] {
        let path = folder.path().join("a.safetensors");
        saved(&path, &tensors, &BTreeMap::new(), &WriteOptions { alignment, sync: true });
        let file = open(&path).unwrap();
        for info in file.catalog().table().iter() {
            assert!(
                info.bytes() % alignment != 0 || info.span.start() % alignment == 0,
                "{} of {alignment}",
                info.name
            );
        }
    }
}

#[test]
#[cfg_attr(windows, ignore = "a file that is open or mapped is not replaced there")]
fn a_file_is_saved_over_while_its_tensors_are_views_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let first = [("w".to_owned(), tensor(DType::Float32, &[1000, 1000], 1))];
    saved(&path, &first, &BTreeMap::new(), &WriteOptions::default());
    let file = open(&path).unwrap();
    let view = file.get("w").unwrap();
    saved(
        &path,
        &[("w".to_owned(), view.clone()), ("again".to_owned(), view.clone())],
        &BTreeMap::new(),
        &WriteOptions::default(),
    );
    assert_eq!(view.bytes(), first[0].1.bytes());
    let new = open(&path).unwrap();
    assert_eq!(new.get("again").unwrap().bytes(), first[0].1.bytes());
}

#[test]
fn an_interrupt_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    fs::write(&path, b"old").unwrap();
    let tensors = [("w".to_owned(), tensor(DType::UInt8, &[64 << 20], 1))];
    let stop = || Err(max_weights::Error::Argument("stop".into()));
    let output = one_file(&path, &BTreeMap::new(), &WriteOptions::default());
    let failed = save(&declared(&tensors), &output, false, &AtomicU64::new(0), &stop);
    assert_eq!(failed.expect_err("stopped").to_string(), "stop");
    assert_eq!((fs::read(&path).unwrap(), fs::read_dir(folder.path()).unwrap().count()), (b"old".to_vec(), 1));
}

#[test]
fn names_and_sizes_that_no_file_can_have_are_refused() {
    let options = WriteOptions::default();
    let declared = |name: &str, dtype, shape: &[u64]| DeclaredTensor {
        name: name.into(),
        stored: StoredElements::Plain(dtype),
        shape: shape.into(),
    };
    let refused = |tensors: Vec<DeclaredTensor>, options: &WriteOptions, what: &str| {
        let error =
            FileLayout::safetensors(tensors, &BTreeMap::new(), options).map(drop).expect_err("refused").to_string();
        assert!(error.contains(what), "{error}");
    };
    refused(vec![declared("__metadata__", DType::UInt8, &[1])], &options, "is the key of the metadata");
    refused(
        vec![declared("a", DType::UInt8, &[1]), declared("a", DType::Int8, &[1])],
        &options,
        "two tensors are called 'a'",
    );
    refused(vec![declared("a", DType::Float4E2M1Fn, &[3])], &options, "whole bytes");
    refused(vec![declared("a", DType::Float64, &[1 << 61])], &options, "2^62");
    refused(
        vec![declared("a", DType::UInt8, &[1 << 62]), declared("b", DType::UInt8, &[1 << 62])],
        &options,
        "more than 2^62",
    );
    refused(vec![declared(&"n".repeat(100_000_000), DType::UInt8, &[1])], &options, "at most 100000000");
    for alignment in [0, 4, 48, 1 << 30] {
        refused(Vec::new(), &WriteOptions { alignment, ..options }, "power of two");
    }
    let packed = DeclaredTensor {
        stored: StoredElements::Packed(max_weights::Encoding::Q8_0),
        ..declared("a", DType::UInt8, &[32])
    };
    refused(vec![packed], &options, "cannot hold Q8_0");
}

#[test]
fn a_writer_takes_tensors_in_any_order_and_each_byte_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let declare = |name: &str, count| DeclaredTensor {
        name: name.into(),
        stored: StoredElements::Plain(DType::UInt16),
        shape: vec![count],
    };
    let layout = || {
        FileLayout::safetensors(
            [declare("a", 4), declare("b", 3), declare("none", 0)],
            &BTreeMap::new(),
            &WriteOptions::default(),
        )
        .unwrap()
    };
    let writer = TensorFileWriter::create(&path, layout(), true, &SaveDestination::default(), &uninterrupted).unwrap();
    writer.write("b", 2, &[3, 4, 5, 6]).unwrap();
    writer.write("a", 6, &[7, 8]).unwrap();
    writer.write("a", 0, &[1, 2]).unwrap();
    let message = |result: max_weights::Result<()>| result.expect_err("refused").to_string();
    assert!(message(writer.write("a", 1, &[0])).contains("were written before"));
    assert!(message(writer.write("a", 5, &[0, 0])).contains("were written before"));
    assert!(message(writer.write("a", 7, &[0, 0])).contains("do not fit into its 8 bytes"));
    assert!(message(writer.write("a", u64::MAX, &[0, 0])).contains("do not fit"));
    assert!(message(writer.write("c", 0, &[])).contains("no tensor 'c' was declared"));
    let other = tensor(DType::Int16, &[3], 0);
    assert!(
        message(writer.write_tensor("b", &other, &uninterrupted))
            .contains("declared as uint16 of shape [3], given as int16")
    );
    writer.write("a", 2, &[3, 4, 5, 6]).unwrap();
    assert!(message(writer.finish(&uninterrupted)).contains("'b' (4 of 6 bytes)"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "an unfinished file is gone");

    let writer = TensorFileWriter::create(&path, layout(), true, &SaveDestination::default(), &uninterrupted).unwrap();
    let whole = tensor(DType::UInt16, &[3], 9);
    writer.write_tensor("b", &whole, &uninterrupted).unwrap();
    writer.write("a", 0, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    writer.finish(&uninterrupted).unwrap();
    let file = open(&path).unwrap();
    assert_eq!(file.get("a").unwrap().bytes(), Some(&[1, 2, 3, 4, 5, 6, 7, 8][..]));
    assert_eq!(file.get("b").unwrap().bytes(), whole.bytes());
}

#[test]
fn shards_are_filled_in_the_order_of_names_and_older_ones_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let tensors: Vec<(String, Buffer)> =
        (0..12).rev().map(|i| (format!("layers.{i}.w"), tensor(DType::UInt8, &[100], i as u8))).collect();
    let save = |most| {
        let (folder, stem, metadata) = (folder.path().to_path_buf(), "model".to_owned(), Some(BTreeMap::new()));
        let output = SaveTarget::Sharded { folder, stem, most, metadata, options: WriteOptions::default() };
        save(&declared(&tensors), &output, true, &AtomicU64::new(0), &uninterrupted).unwrap()
    };
    let names = || {
        let mut names: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    fs::write(folder.path().join("model-notes.txt"), b"not ours").unwrap();
    let files = save(500);
    assert_eq!(files.len(), 4, "three shards and the index");
    let index: serde_json::Value = serde_json::from_slice(&fs::read(files.last().unwrap()).unwrap()).unwrap();
    assert_eq!(index["metadata"]["total_size"], 1200);
    assert_eq!(index["weight_map"]["layers.4.w"], "model-00001-of-00003.safetensors");
    assert_eq!(index["weight_map"]["layers.5.w"], "model-00002-of-00003.safetensors");
    assert_eq!(index["weight_map"]["layers.10.w"], "model-00003-of-00003.safetensors");
    let all = open(folder.path()).unwrap();
    assert_eq!(all.get("layers.11.w").unwrap().bytes(), tensors[0].1.bytes());
    drop(all);
    save(1);
    assert_eq!(names().iter().filter(|name| name.contains("-of-00012")).count(), 12, "a tensor is never cut");
    assert_eq!(names().len(), 14);
    save(10_000);
    assert_eq!(names(), ["model-notes.txt", "model.safetensors"]);
}
