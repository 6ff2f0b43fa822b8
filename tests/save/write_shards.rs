//! An error in one file of a sharded save is found before the first of them is written, and files of others stay.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, thread};

use max_weights::buffer::Buffer;
use max_weights::dtype::DType;
use max_weights::memory::Storage;
use max_weights::write::{
    ConvertItem, DeclaredTensor, MetadataValue, SaveTarget, StoredElements, WriteOptions, convert, declare, save,
};
use max_weights::{Checkpoint, Error, OpenOptions, open, uninterrupted};

/// A tensor of `elements` elements that are all one byte.
fn expanded(elements: i64) -> Buffer {
    Buffer::strided_at(Storage::of_bytes(&[7]).unwrap(), 0, DType::UInt8, &[elements], &[0]).unwrap()
}

fn declared(name: &str, shape: &[u64]) -> DeclaredTensor {
    DeclaredTensor { name: name.into(), stored: StoredElements::Plain(DType::UInt8), shape: shape.into() }
}

fn sharded(folder: &Path, most: u64, options: WriteOptions) -> SaveTarget {
    SaveTarget::Sharded { folder: folder.to_path_buf(), stem: "model".to_owned(), most, metadata: None, options }
}

fn save_sharded(
    folder: &Path,
    tensors: &[(String, Buffer)],
    most: u64,
    options: WriteOptions,
    done: &AtomicU64,
) -> Result<Vec<PathBuf>, Error> {
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (declare(name, tensor), tensor.clone())).collect();
    save(&tensors, &sharded(folder, most, options), false, done, &uninterrupted)
}

fn save_gguf(
    path: &Path,
    tensors: &[(DeclaredTensor, Buffer)],
    metadata: &[(String, MetadataValue)],
    most: u64,
    sync: bool,
    done: &AtomicU64,
) -> Result<Vec<PathBuf>, Error> {
    let output = SaveTarget::Gguf { path: path.to_path_buf(), metadata: metadata.to_vec(), most: Some(most), sync };
    save(tensors, &output, false, done, &uninterrupted)
}

/// The error for tensors that are saved in a file each; nothing has been written then.
fn refused(folder: &Path, tensors: &[(&str, Buffer)]) -> String {
    let tensors: Vec<(String, Buffer)> =
        tensors.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect();
    let (before, done) = (fs::read_dir(folder).unwrap().count(), AtomicU64::new(0));
    let saved = save_sharded(folder, &tensors, 1, WriteOptions::default(), &done);
    assert_eq!((done.into_inner(), fs::read_dir(folder).unwrap().count()), (0, before));
    saved.expect_err("refused").to_string()
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_has_room_for_the_first_file_alone() {
    let folder = tempfile::tempdir().unwrap();
    let message = refused(folder.path(), &[("a", expanded(1)), ("b", expanded(1 << 60))]);
    assert!(message.contains("bytes free"), "{message}");
}

#[test]
fn a_name_that_the_last_file_cannot_have() {
    let folder = tempfile::tempdir().unwrap();
    let message = refused(folder.path(), &[("A", expanded(1)), ("__metadata__", expanded(1))]);
    assert!(message.contains("cannot be called __metadata__"), "{message}");
}

#[test]
fn a_directory_where_the_last_file_would_be() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("model-00002-of-00002.safetensors")).unwrap();
    let message = refused(folder.path(), &[("a", expanded(1)), ("b", expanded(1))]);
    assert!(message.contains("cannot replace a directory"), "{message}");
}

#[test]
fn a_name_that_ggml_has_no_room_for() {
    let folder = tempfile::tempdir().unwrap();
    let floats = |name: &str| {
        let tensor = Buffer::contiguous_at(Storage::of_bytes(&[0; 4]).unwrap(), 0, DType::Float32, &[1]).unwrap();
        (DeclaredTensor { stored: StoredElements::Plain(DType::Float32), ..declared(name, &[1]) }, tensor)
    };
    let (tensors, done) = ([floats("a"), floats(&"n".repeat(64))], AtomicU64::new(0));
    let metadata = [("general.name".to_owned(), MetadataValue::U8(1))];
    let path = folder.path().join("set.gguf");
    let saved = save_gguf(&path, &tensors, &metadata, 1, true, &done);
    assert!(saved.expect_err("refused").to_string().contains("ggml has room for 63"));
    assert_eq!((done.into_inner(), fs::read_dir(folder.path()).unwrap().count()), (0, 0));
}

#[test]
#[cfg_attr(windows, ignore = "a file that is open or mapped is not replaced there")]
fn a_shard_that_was_not_opened_beside_one_that_was() {
    let folder = tempfile::tempdir().unwrap();
    let tensors = ["a", "b"].map(|name| (name.to_owned(), expanded(2)));
    let (options, done) = (WriteOptions::default(), AtomicU64::new(0));
    let shards = save_sharded(folder.path(), &tensors, 1, options, &done).unwrap();
    let one = open(&shards[0]).unwrap();
    let names = || {
        let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    let item = ConvertItem { number: one.catalog().find("a").unwrap(), region: None, tensor: declared("a", &[2]) };
    let output = |most| sharded(folder.path(), most, options);
    let message = convert(&one, &[item], &output(100), false, &done, &uninterrupted).expect_err("refused").to_string();
    assert!(message.contains("model-00002-of-00002.safetensors: it is not among the opened shards"), "{message}");
    assert_eq!(names(), before);
    // All of it may be what it is written over.
    let all = open(folder.path()).unwrap();
    let items = ["a", "b"].map(|name| {
        let number = all.catalog().find(name).unwrap();
        ConvertItem { number, region: None, tensor: declared(name, &[2]) }
    });
    convert(&all, &items, &output(100), false, &done, &uninterrupted).unwrap();
    assert_eq!(names(), ["model.safetensors"]);
}

/// Several concurrent saves of tensors of one byte each, all of which identify their save; and the tensors that exist in the end.
fn saved_at_once(save: impl Fn(u8) + Sync, opened: impl Fn() -> PathBuf) {
    for round in 0..12u8 {
        thread::scope(|scope| {
            let save = &save;
            for saver in 0..6 {
                scope.spawn(move || save(round * 6 + saver));
            }
        });
        let checkpoint = open(opened()).unwrap();
        let names = checkpoint.catalog().table().len();
        let values: BTreeSet<Vec<u8>> =
            (0..names).map(|number| checkpoint.tensor(number).unwrap().bytes().unwrap().to_vec()).collect();
        assert_eq!((names, values.len()), (5, 1), "round {round}: {values:?}");
    }
}

#[test]
#[cfg_attr(windows, ignore = "folders have no locks there, and a file that is open is not replaced")]
fn of_several_that_save_into_one_folder_one_wins_whole_and_none_fails() {
    let folder = tempfile::tempdir().unwrap();
    let options = WriteOptions { sync: false, ..WriteOptions::default() };
    let save = |saver: u8| {
        let byte = Buffer::contiguous_at(Storage::of_bytes(&[saver]).unwrap(), 0, DType::UInt8, &[1]).unwrap();
        let tensors = ["a", "b", "c", "d", "e"].map(|name| (name.to_owned(), byte.clone()));
        // Sometimes as many files as the others have, sometimes fewer, or one without an index.
        let (most, done) = ([1, 1, 2, 5][usize::from(saver) % 4], AtomicU64::new(0));
        save_sharded(folder.path(), &tensors, most, options, &done).unwrap();
    };
    saved_at_once(save, || folder.path().into());
}

#[test]
#[cfg_attr(windows, ignore = "as above")]
fn of_several_that_save_one_gguf_set_one_wins_whole_and_none_fails() {
    let folder = tempfile::tempdir().unwrap();
    let save = |saver: u8| {
        let byte = Buffer::contiguous_at(Storage::of_bytes(&[saver]).unwrap(), 0, DType::Int8, &[1]).unwrap();
        let tensors = ["a", "b", "c", "d", "e"].map(|name| {
            (
                DeclaredTensor { name: name.into(), stored: StoredElements::Plain(DType::Int8), shape: [1].into() },
                byte.clone(),
            )
        });
        let (most, done) = ([1, 1, 2][usize::from(saver) % 3], AtomicU64::new(0));
        let path = folder.path().join("set.gguf");
        save_gguf(&path, &tensors, &[], most, false, &done).unwrap();
    };
    saved_at_once(save, || folder.path().into());
}

#[test]
#[cfg_attr(windows, ignore = "a file that is open or mapped is not replaced there")]
fn one_of_several_files_of_the_input_is_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let tensors = ["a", "b"].map(|name| (name.to_owned(), expanded(2)));
    let (options, done) = (WriteOptions::default(), AtomicU64::new(0));
    let shards = save_sharded(folder.path(), &tensors, 1, options, &done).unwrap();
    let before: Vec<Vec<u8>> = shards.iter().map(|path| fs::read(path).unwrap()).collect();
    let list = [shards[0].clone(), shards[1].clone()];
    let all = [Checkpoint::open(&list, &OpenOptions::default()).unwrap(), open(folder.path()).unwrap()];
    for checkpoint in all.into_iter().chain([open(&shards[0]).unwrap()]) {
        let item =
            ConvertItem { number: checkpoint.catalog().find("a").unwrap(), region: None, tensor: declared("a", &[2]) };
        let outputs = [
            SaveTarget::Safetensors { path: shards[0].clone(), metadata: None, options },
            SaveTarget::Gguf {
                path: folder.path().join(".").join(shards[0].file_name().unwrap()),
                metadata: vec![],
                most: None,
                sync: true,
            },
        ];
        for output in outputs {
            let message = convert(&checkpoint, std::slice::from_ref(&item), &output, false, &done, &uninterrupted);
            let message = message.expect_err("refused").to_string();
            assert!(message.contains("it is one of several files of the checkpoint"), "{message}");
        }
        let path = folder.path().join("other.safetensors");
        let output = SaveTarget::Safetensors { path: path.clone(), metadata: None, options };
        convert(&checkpoint, &[item], &output, false, &done, &uninterrupted).unwrap();
        fs::remove_file(path).unwrap();
    }
    let after: Vec<Vec<u8>> = shards.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(after == before);
}

#[test]
fn second_names_of_other_saves_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let own = path(".model.7-0-00001-of-00002.max-weights-next.safetensors");
    let others = path(".model.b.7-0-00001-of-00002.max-weights-next.safetensors");
    fs::write(&own, b"what an index may name").unwrap();
    fs::write(&others, b"what another one may name").unwrap();
    let done = AtomicU64::new(0);
    let floats = Buffer::contiguous_at(Storage::of_bytes(&[0; 4]).unwrap(), 0, DType::Float32, &[1]).unwrap();
    let tensors =
        [(DeclaredTensor { stored: StoredElements::Plain(DType::Float32), ..declared("a", &[1]) }, floats.clone())];
    save_gguf(&path("model.gguf"), &tensors, &[], 1, true, &done).unwrap();
    assert!(own.exists() && others.exists());
    let tensors = [("a".to_owned(), floats)];
    save_sharded(folder.path(), &tensors, 1, WriteOptions::default(), &done).unwrap();
    assert!(!own.exists() && others.exists());
}

#[test]
fn a_tensor_of_another_shape_and_one_without_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let (path, out) = (folder.path().join("a.safetensors"), folder.path().join("out"));
    let tensors = ["a", "b"].map(|name| (declare(name, &expanded(2)), expanded(2)));
    let output = SaveTarget::Safetensors { path: path.clone(), metadata: None, options: WriteOptions::default() };
    save(&tensors, &output, false, &AtomicU64::new(0), &uninterrupted).unwrap();
    let checkpoint = open(&path).unwrap();
    let item = |name: &str, shape: &[u64]| {
        let number = checkpoint.catalog().find(name).unwrap();
        ConvertItem { number, region: None, tensor: declared(name, shape) }
    };
    let mut items = [item("a", &[2]), item("b", &[1])];
    let options = WriteOptions::default();
    let output = sharded(&out, 1, options);
    let done = AtomicU64::new(0);
    let message = convert(&checkpoint, &items, &output, false, &done, &uninterrupted).expect_err("refused").to_string();
    assert!(message.contains("tensor 'b' has the shape [2], but [1] was declared"), "{message}");
    items[1].tensor = declared("", &[2]);
    let message = convert(&checkpoint, &items, &output, false, &done, &uninterrupted).expect_err("refused").to_string();
    assert!(message.contains("tensor 'b' would have an empty name"), "{message}");
    assert_eq!((done.load(Ordering::Relaxed), out.exists()), (0, false));
}
