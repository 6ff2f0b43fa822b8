//! What the entries of a zip file hold: deflated bytes that lie, and archives that are no checkpoint, with the rule that they must name.

#![allow(clippy::result_large_err)] // a fault is compared here, not passed up

use crate::zip_files::{Part, Zip, assert_fault, contents, parse, plain_parts, read, torch_parts};
use max_weights::budget::Budget;
use max_weights::error::{Error, Result};
use max_weights::format::HeaderOptions;
use max_weights::format::torch_zip::{self, LayoutParser, TorchLayout, ZipMethod};
use max_weights::workers::uninterrupted;

fn layout(zip: &Zip) -> Result<TorchLayout> {
    let (archive, options) = (read(zip), HeaderOptions::default());
    let parser = LayoutParser::new(&archive, &options, 1 << 20, Budget::of_file(zip.bytes.len() as u64));
    parse(parser, &zip.bytes).map(|(layout, _)| layout)
}

// Compression.

#[test]
fn a_deflated_pickle_is_inflated() {
    let mut parts = plain_parts();
    parts[0] = Part::deflated("archive/data.pkl", vec![7; 5000]);
    let zip = Zip::new(&parts);
    let archive = read(&zip);
    let entry = archive.member("data.pkl").expect("there");
    assert_eq!((entry.method, entry.size, entry.data.len() < 100), (ZipMethod::Deflated, 5000, true));
    assert_eq!(contents(&entry, 5000, &zip.bytes).expect("inflated"), vec![7; 5000]);
    let error = contents(&entry, 4999, &zip.bytes).expect_err("too long");
    assert_fault(error, "torch-zip.entry-too-long", entry.data.start() as usize);
}

#[test]
fn a_bomb_is_not_inflated() {
    let error = torch_zip::inflate(&vec![0; 1 << 20], 1 << 30, &uninterrupted).expect_err("refused");
    let fault = assert_fault(error, "torch-zip.bomb", None);
    assert!(fault.help.contains("zip -0"));
    assert_fault(torch_zip::inflate(&[0; 10], 10_321, &uninterrupted).expect_err("refused"), "torch-zip.bomb", None);
    // Zeros are compressed a thousandfold, and are not a bomb yet.
    let zeros = miniz_oxide::deflate::compress_to_vec(&vec![0; 8 << 20], 6);
    assert!((8 << 20) / zeros.len() > 900, "{}", zeros.len());
    assert!(torch_zip::inflate(&zeros, 8 << 20, &uninterrupted).expect("zeros").iter().all(|byte| *byte == 0));
}

fn inflated_in_pieces(stream: &[u8], size: u64) -> Result<Vec<u8>> {
    let mut inflated = Vec::new();
    let read = |from: u64, bytes: &mut [u8]| {
        bytes.copy_from_slice(&stream[from as usize..][..bytes.len()]);
        Ok(())
    };
    torch_zip::inflate_in_pieces(stream.len() as u64, size, read, |piece| {
        assert!(piece.len() <= 1 << 18);
        inflated.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(inflated)
}

#[test]
fn what_is_inflated_in_pieces_is_what_is_inflated_at_once() {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 24
    };
    for (len, values) in
        [(0, 1), (1, 1), (262_144, 2), (262_145, 256), (1_000_000, 256), (1_500_000, 20), (3_000_000, 2)]
    {
        let bytes: Vec<u8> = (0..len).map(|_| (next() % values) as u8).collect();
        for level in [0, 1, 6] {
            let stream = miniz_oxide::deflate::compress_to_vec(&bytes, level);
            assert!(inflated_in_pieces(&stream, len).expect("inflated") == bytes, "{len} of {values}, {level}");
        }
    }
}

#[test]
fn a_stream_that_is_not_what_the_archive_says() {
    let text: Vec<u8> = (0..200_000u32).flat_map(|number| (number / 7).to_le_bytes()).collect();
    let stream = miniz_oxide::deflate::compress_to_vec(&text, 6);
    let size = text.len() as u64;
    assert_eq!(torch_zip::inflate(&stream, size, &uninterrupted).expect("whole"), text);
    for (stream, size) in [
        (stream.clone(), size - 1),
        (stream.clone(), size + 1),
        (stream.clone(), 0),
        (stream[..stream.len() - 1].to_vec(), size),
        (stream[..stream.len() / 2].to_vec(), size),
        ([&stream[..], b"x"].concat(), size),
        ([b"\x07", &stream[..]].concat(), size),
    ] {
        let outcomes =
            [inflated_in_pieces(&stream, size).map(drop), torch_zip::inflate(&stream, size, &uninterrupted).map(drop)];
        for outcome in outcomes {
            assert_fault(outcome.expect_err("refused"), "torch-zip.deflate", None);
        }
    }
    let mut parts = plain_parts();
    parts[1] = Part::deflated("archive/data/0", &text);
    parts[1].data.pop();
    let zip = Zip::new(&parts);
    let archive = read(&zip);
    let entry = archive.storage("0").expect("there");
    let error = contents(&entry, u64::MAX, &zip.bytes).expect_err("cut");
    let fault = assert_fault(error, "torch-zip.deflate", entry.data.start() as usize);
    assert!(fault.message.starts_with("entry 'archive/data/0': "), "{fault}");
}

// What it means to PyTorch.

#[test]
fn a_file_as_torch_writes_it_is_a_checkpoint() {
    let layout = layout(&Zip::with(&torch_parts(), true, b"")).expect("a checkpoint");
    assert_eq!(layout, TorchLayout { pickle: 0, big_endian: false, version: Some(3) });
}

#[test]
fn two_names_that_differ_in_case_only() {
    let mut parts = plain_parts();
    parts[2].name = b"archive/DATA.pkl".to_vec();
    let zip = Zip::new(&parts);
    assert_fault(layout(&zip).expect_err("refused"), "torch-zip.case", zip.locals[2]);
}

/// A file with entries of these names.
fn named(names: &[&str]) -> Zip {
    Zip::new(&names.iter().map(|name| Part::stored(name, b"x")).collect::<Vec<_>>())
}

#[test]
fn a_torchscript_archive_says_what_to_do() {
    for names in [&["a/data.pkl", "a/constants.pkl"][..], &["a/data.pkl", "a/code/__torch__.py"]] {
        let error = layout(&named(names)).expect_err("refused");
        assert!(matches!(error, Error::Unsupported(_)));
        let fault = assert_fault(error, "torch-zip.torchscript", 0);
        assert!(fault.help.contains("torch.jit.load"));
    }
}

#[test]
fn zip_files_that_are_no_checkpoint_say_what_they_are() {
    for (names, message) in [
        (&["[Content_Types].xml", "word/document.xml"][..], "Office"),
        (&["a.npy", "b.npy"], "NumPy archive"),
        (&["config.json", "metadata.json", "model.weights.h5"], "Keras"),
        (&["data", "policy.pth"], "Stable-Baselines3"),
        (&["META-INF/MANIFEST.MF"], "Java"),
        (&["mimetype", "content.xml"], "OpenDocument"),
        (&["x/__init__.py", "x-1.dist-info/METADATA"], "wheel"),
        (&["models/a.safetensors"], "with checkpoints in it"),
        (&["a/archive_format", "a/models/model.json"], "torch.export"),
        (&["a/.data/extern_modules", "a/x.py"], "torch.package"),
    ] {
        let fault = assert_fault(layout(&named(names)).expect_err("refused"), "torch-zip.stranger", 0);
        assert!(fault.message.contains(message), "{fault}");
    }
}

#[test]
fn an_archive_without_a_pickle_says_what_it_has() {
    let fault = assert_fault(layout(&named(&["a", "b", "c", "d"])).expect_err("refused"), "torch-zip.no-pickle", 0);
    assert!(fault.message.contains("a zip archive of 4 files ('a', 'b', 'c', …)"), "{fault}");
    let fault = assert_fault(layout(&named(&[])).expect_err("refused"), "torch-zip.no-pickle", 0);
    assert!(fault.message.contains("an empty zip archive"), "{fault}");
    let zip = named(&["__MACOSX/x", "archive/data.pkl"]);
    let fault = assert_fault(layout(&zip).expect_err("refused"), "torch-zip.no-pickle", zip.locals[1]);
    assert!(fault.message.contains("of the first entry, '__MACOSX/x'"), "{fault}");
}

#[test]
fn the_byte_order_is_little_big_or_an_error() {
    for (text, expected) in [("little", Some(false)), ("big", Some(true)), ("middle", None), ("", None)] {
        for part in [Part::stored("archive/byteorder", text), Part::deflated("archive/byteorder", text)] {
            let mut parts = plain_parts();
            parts.push(part);
            let zip = Zip::new(&parts);
            let at = zip.locals[3] + 30 + 17;
            match (layout(&zip), expected) {
                (Ok(layout), Some(big)) => assert_eq!(layout.big_endian, big),
                (Err(error), None) => drop(assert_fault(error, "torch-zip.byteorder", at)),
                (outcome, _) => panic!("{text}: {outcome:?}"),
            }
        }
    }
}
