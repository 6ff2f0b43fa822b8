//! Errors while a tensor is written name the file, and the tensor does not count as written.

use std::cell::Cell;
use std::path::Path;

use max_weights::buffer::Buffer;
use max_weights::dtype::DType;
use max_weights::memory::Storage;
use max_weights::write::{
    DeclaredTensor, FileLayout, SaveDestination, SaveTarget, StoredElements, TensorFileWriter, WriteOptions, declare,
    save,
};
use max_weights::{Error, open, uninterrupted};

/// Long enough to be written in several pieces.
const BYTES: usize = 9 << 20;

fn writer(path: &Path) -> TensorFileWriter {
    let tensor =
        DeclaredTensor { name: "w".into(), stored: StoredElements::Plain(DType::UInt8), shape: vec![BYTES as u64] };
    TensorFileWriter::create(
        path,
        FileLayout::safetensors([tensor], None, &WriteOptions::default()).unwrap(),
        false,
        &SaveDestination::default(),
        &uninterrupted,
    )
    .unwrap()
}

fn bytes(range: std::ops::Range<usize>) -> (Vec<u8>, Buffer) {
    let bytes: Vec<u8> = range.map(|i| (i % 251) as u8).collect();
    let storage = Storage::of_bytes(&bytes).unwrap();
    let tensor = Buffer::contiguous_at(storage, 0, DType::UInt8, &[bytes.len() as i64]).unwrap();
    (bytes, tensor)
}

#[test]
fn what_was_interrupted_is_missing_at_the_end_and_may_be_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let ((all, whole), (_, inner)) = (bytes(0..BYTES), bytes(10..BYTES - 10));
    let interrupted = |writer: &TensorFileWriter, offset, part: &Buffer| {
        let requested = Cell::new(0);
        let stop = || if requested.replace(requested.get() + 1) < 2 { Ok(()) } else { Err(Error::Interrupted) };
        let failed = writer.write_part("w", offset, part, &stop).expect_err("stopped");
        assert!(matches!(failed, Error::Interrupted));
    };
    let given_up = writer(&path);
    interrupted(&given_up, 0, &whole);
    let reported = given_up.finish(&uninterrupted).expect_err("it is not there").to_string();
    assert!(reported.contains(&format!("'w' (0 of {BYTES} bytes)")), "{reported}");
    assert!(!path.exists());

    // Between bytes that were written, and stay so.
    let writer = writer(&path);
    writer.write("w", 0, &all[..10]).unwrap();
    writer.write("w", BYTES as u64 - 10, &all[BYTES - 10..]).unwrap();
    interrupted(&writer, 10, &inner);
    for offset in [9, BYTES as u64 - 10] {
        let reported = writer.write("w", offset, &[0]).expect_err("it is there").to_string();
        assert!(reported.contains("were written before"), "{reported}");
    }
    writer.write_part("w", 10, &inner, &uninterrupted).unwrap();
    writer.finish(&uninterrupted).unwrap();
    assert_eq!(open(&path).unwrap().get("w").unwrap().bytes(), Some(&*all));
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_is_cut_off_while_its_tensors_are_saved_is_named_and_they_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let (source, path) = (folder.path().join("source.safetensors"), folder.path().join("a.safetensors"));
    let (_, whole) = bytes(0..BYTES);
    let made = writer(&source);
    made.write_tensor("w", &whole, &uninterrupted).unwrap();
    made.finish(&uninterrupted).unwrap();
    let mapped = open(&source).unwrap().get("w").unwrap();
    std::fs::File::options().write(true).open(&source).unwrap().set_len(BYTES as u64 / 2).unwrap();

    let message = |error: Error| {
        assert!(matches!(error, Error::FileChanged(_)), "{error}");
        assert!(error.to_string().contains("source.safetensors"), "{error}");
    };
    let writer = writer(&path);
    message(writer.write_tensor("w", &mapped, &uninterrupted).expect_err("it is not there"));
    let reported = writer.finish(&uninterrupted).expect_err("not written").to_string();
    assert!(reported.contains(&format!("(0 of {BYTES} bytes)")), "{reported}");
    let tensors = [(declare("w", &mapped), mapped)];
    let done = std::sync::atomic::AtomicU64::new(0);
    let output = SaveTarget::Safetensors { path: path.clone(), metadata: None, options: WriteOptions::default() };
    message(save(&tensors, &output, false, &done, &uninterrupted).expect_err("it is not there"));
    assert!(!path.exists());
}
