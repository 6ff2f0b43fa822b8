//! Tensors that are in memory are written as what they are declared to be: with the bytes that converting them first would give, in every format,
//! read back or not, from memory of any layout.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use max_weights::buffer::{Buffer, dequantize, quantize};
use max_weights::dtype::DType;
use max_weights::memory::Storage;
use max_weights::quant::Encoding;
use max_weights::write::{
    ConvertItem, DeclaredTensor, FileLayout, MetadataValue, SaveDestination, SaveTarget, StoredElements,
    TensorFileWriter, WriteOptions, convert, declare, save,
};
use max_weights::{Error, open, uninterrupted};
use proptest::prelude::*;

const FLOATS: [DType; 4] = [DType::Float32, DType::Float16, DType::BFloat16, DType::Float64];
const ENCODINGS: [Encoding; 3] = [Encoding::Q8_0, Encoding::Q4_0, Encoding::Q5_1];

/// Numbers between -1 and 1.
fn values(shape: &[i64], seed: u32) -> Buffer {
    let count = shape.iter().product::<i64>() as u32;
    let numbers = (0..count).map(|i| ((i.wrapping_mul(2_654_435_761) ^ seed) % 2000) as f32 / 1000.0 - 1.0);
    let bytes: Vec<u8> = numbers.flat_map(f32::to_ne_bytes).collect();
    Buffer::contiguous_at(Storage::of_bytes(&bytes).unwrap(), 0, DType::Float32, shape).unwrap()
}

/// What a tensor becomes: another dtype, blocks, or nothing else.
#[derive(Debug, Clone, Copy)]
enum To {
    Same,
    Plain(DType),
    Packed(Encoding),
}

fn any_to(is_gguf: bool) -> impl Strategy<Value = To> {
    let plain = || proptest::sample::select(FLOATS.to_vec()).prop_map(To::Plain);
    let packed = proptest::sample::select(ENCODINGS.to_vec()).prop_map(To::Packed);
    if is_gguf {
        prop_oneof![Just(To::Same), plain(), packed].boxed()
    } else {
        prop_oneof![Just(To::Same), plain()].boxed()
    }
}

/// Whether it is a GGUF file, the most bytes of a file of several, and of each tensor its dtype, whether its memory is in another order than C's, its
/// rows, and what it becomes.
type Case = (bool, Option<u64>, Vec<(DType, bool, i64, To)>);

fn any_case() -> impl Strategy<Value = Case> {
    any::<bool>().prop_flat_map(|is_gguf| {
        let dtype = proptest::sample::select(FLOATS.to_vec());
        let tensor = (dtype, any::<bool>(), 0..40_i64, any_to(is_gguf));
        let most = proptest::option::of(1..20_000_u64);
        (Just(is_gguf), most, proptest::collection::vec(tensor, 1..12))
    })
}

fn output(path: PathBuf, is_gguf: bool, most: Option<u64>) -> SaveTarget {
    let options = WriteOptions { sync: false, ..WriteOptions::default() };
    match (is_gguf, most) {
        (true, most) => {
            let metadata = vec![("general.architecture".to_owned(), MetadataValue::String(b"llama".to_vec()))];
            SaveTarget::Gguf { path, metadata, most, sync: false }
        }
        (false, None) => SaveTarget::Safetensors { path, metadata: None, options },
        (false, Some(most)) => {
            SaveTarget::Sharded { folder: path, stem: "model".to_owned(), most, metadata: None, options }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn what_is_saved_is_what_converting_it_first_gives((is_gguf, most, tensors) in any_case(), verify in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        let (mut given, mut expected) = (Vec::new(), Vec::new());
        for (number, (dtype, turned, rows, to)) in tensors.into_iter().enumerate() {
            let plain = values(&[rows, 64], number as u32).astype(dtype, false, &uninterrupted).unwrap();
            let tensor = if turned {
                // The same elements, with the axes changed twice: their memory is in another order.
                let across = Buffer::strided_at(plain.storage().clone(), 0, dtype, &[64, rows], &[1, 64]).unwrap();
                let across = across.copy(&uninterrupted).unwrap();
                Buffer::strided_at(across.storage().clone(), 0, dtype, &[rows, 64], &[1, rows.max(1)]).unwrap()
            } else {
                plain.clone()
            };
            let name = format!("layers.{number}.weight");
            let shape = vec![rows as u64, 64];
            let (stored, bytes) = match to {
                To::Same => (StoredElements::Plain(dtype), plain),
                To::Plain(to) => (StoredElements::Plain(to), plain.astype(to, false, &uninterrupted).unwrap()),
                To::Packed(encoding) => {
                    let floats = plain.astype(DType::Float32, false, &uninterrupted).unwrap();
                    (StoredElements::Packed(encoding), quantize(&floats, encoding, &uninterrupted).unwrap())
                }
            };
            expected.push((name.clone(), bytes));
            given.push((DeclaredTensor { name, stored, shape }, tensor));
        }
        let path = folder.path().join(if is_gguf { "model.gguf" } else { "model.safetensors" });
        let done = AtomicU64::new(0);
        let files = save(&given, &output(path, is_gguf, most), verify, &done, &uninterrupted).unwrap();
        let written: u64 = expected.iter().map(|(_, bytes)| bytes.size() as u64).sum();
        prop_assert_eq!(done.load(Ordering::Relaxed), written);
        let set: Vec<_> = files.iter().filter(|file| file.extension().is_some_and(|end| end != "json")).collect();
        let opened: Vec<_> = set.iter().map(|file| max_weights::Checkpoint::open(&[file], &lenient()).unwrap()).collect();
        for (name, bytes) in &expected {
            let found = opened.iter().find_map(|file| file.get(name).ok()).expect("it is in one of the files");
            prop_assert_eq!(found.bytes(), bytes.bytes(), "{}", name);
        }
    }
}

fn lenient() -> max_weights::OpenOptions {
    max_weights::OpenOptions::default().strict(false)
}

#[test]
fn memory_that_has_the_bytes_of_blocks_is_written_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let blocks = quantize(&values(&[3, 64], 1), Encoding::Q8_0, &uninterrupted).unwrap();
    let tensor =
        DeclaredTensor { name: "w".to_owned(), stored: StoredElements::Packed(Encoding::Q8_0), shape: vec![3, 64] };
    let path = folder.path().join("model.gguf");
    let output = output(path.clone(), true, None);
    save(&[(tensor, blocks.clone())], &output, true, &AtomicU64::new(0), &uninterrupted).unwrap();
    let found = open(&path).unwrap();
    assert_eq!(found.get("w").unwrap().bytes(), blocks.bytes());
    let floats = dequantize(&blocks, Encoding::Q8_0, DType::Float32, &[3, 64], None, &uninterrupted).unwrap();
    let again = found.get("w").unwrap();
    let again = dequantize(&again, Encoding::Q8_0, DType::Float32, &[3, 64], None, &uninterrupted).unwrap();
    assert_eq!(again.bytes(), floats.bytes());
}

#[test]
fn what_cannot_become_what_is_declared_is_refused_before_a_file_is_begun() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    fs::write(&path, b"what was there").unwrap();
    let complex = Buffer::zeros(DType::Complex64, &[2]).unwrap();
    let good = Buffer::zeros(DType::Float32, &[2]).unwrap();
    let to_float = DeclaredTensor { stored: StoredElements::Plain(DType::Float32), ..declare("bad", &complex) };
    let longer = DeclaredTensor { shape: vec![3], ..declare("bad", &good) };
    for (bad, buffer, message) in [(to_float, &complex, "complex64"), (longer, &good, "[3]")] {
        let tensors = [(declare("good", &good), good.clone()), (bad, buffer.clone())];
        let output = output(path.clone(), false, None);
        let failed = save(&tensors, &output, false, &AtomicU64::new(0), &uninterrupted).expect_err("refused");
        assert!(matches!(failed, Error::Argument(_) | Error::Unsupported(_)), "{failed:?}");
        assert!(failed.to_string().contains("'bad'") && failed.to_string().contains(message), "{failed}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"what was there");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing temporary is left");
}

/// Changes the last byte of every file that is not in its place yet.
fn spoil(folder: &Path) {
    for file in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if file.to_string_lossy().ends_with("unfinished") {
            let mut bytes = fs::read(&file).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(&file, bytes).unwrap();
        }
    }
}

#[test]
#[cfg_attr(windows, ignore = "nobody else can write to a file that is being written there")]
fn a_disk_that_changes_a_byte_is_found_by_every_save_that_reads_back() {
    let tensor = values(&[8, 64], 1);
    let sources = tempfile::tempdir().unwrap();
    let source = sources.path().join("source.safetensors");
    let given = [(declare("layers.0.weight", &tensor), tensor)];
    let done = || AtomicU64::new(0);
    save(&given, &output(source.clone(), false, None), false, &done(), &uninterrupted).unwrap();
    let checkpoint = open(&source).unwrap();
    let items = [ConvertItem { number: 0, region: None, tensor: given[0].0.clone() }];
    for (is_gguf, most) in [(false, None), (false, Some(1 << 20)), (true, None), (true, Some(1 << 20))] {
        for converted in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let path = if is_gguf { folder.path().join("model.gguf") } else { folder.path().join("model.safetensors") };
            let path = if !is_gguf && most.is_some() { folder.path().to_path_buf() } else { path };
            let (output, done) = (output(path, is_gguf, most), done());
            let spoiled = Cell::new(false);
            let interrupt = || {
                if done.load(Ordering::Relaxed) > 0 && !spoiled.replace(true) {
                    spoil(folder.path());
                }
                Ok(())
            };
            let saved = if converted {
                convert(&checkpoint, &items, &output, true, &done, &interrupt)
            } else {
                save(&given, &output, true, &done, &interrupt)
            };
            let failed = saved.expect_err("it was changed").to_string();
            assert!(failed.contains("layers.0.weight") && failed.contains("when read back"), "{failed}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing took its place: {output:?}");
        }
    }
    drop(checkpoint);
}

#[test]
#[cfg_attr(windows, ignore = "nobody else can write to a file that is being written there")]
fn a_writer_that_reads_back_finds_a_changed_byte_and_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let tensor = values(&[8, 64], 1);
    fs::write(&path, b"what was there").unwrap();
    let layout = FileLayout::safetensors([declare("w", &tensor)], None, &WriteOptions::default()).unwrap();
    let writer =
        TensorFileWriter::create(&path, layout, false, &SaveDestination::default(), &uninterrupted).unwrap().verified();
    writer.write_tensor("w", &tensor, &uninterrupted).unwrap();
    spoil(folder.path());
    let failed = writer.finish(&uninterrupted).expect_err("it was changed").to_string();
    assert!(failed.contains("'w'") && failed.contains("when read back"), "{failed}");
    assert_eq!(fs::read(&path).unwrap(), b"what was there");
}
