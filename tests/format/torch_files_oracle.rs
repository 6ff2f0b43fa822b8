//! PyTorch files against independent readers: zip files made by the `zip` crate, and real checkpoints.

use std::io::{Cursor, Read, Write};
use std::path::PathBuf;

use max_weights::budget::Budget;
use max_weights::error::Result;
use max_weights::format::torch_legacy::{self, Legacy};
use max_weights::format::torch_zip::{self, CheckedArchive, LayoutParser, ZipMethod, crc32};
use max_weights::format::{HeaderOptions, Parse, drive};
use max_weights::source::InMemory;
use max_weights::workers::uninterrupted;
use proptest::prelude::*;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// Gives a parser what it asks for.
fn parse<P: Parse>(parser: P, bytes: &[u8]) -> Result<P::Output> {
    drive(parser, &InMemory::new("a.pt", bytes.to_vec()), &uninterrupted)
}

fn read(bytes: &[u8]) -> CheckedArchive {
    parse(torch_zip::TorchZipParser::new(bytes.len() as u64, &HeaderOptions::default()), bytes).expect("read")
}

fn read_legacy(bytes: &[u8]) -> Legacy {
    parse(torch_legacy::TorchLegacyParser::new(bytes.len() as u64, &HeaderOptions::default()), bytes).expect("read")
}

/// Places, sizes and bytes of every entry are those that the crate finds.
fn compare(bytes: &[u8]) -> CheckedArchive {
    let archive = read(bytes);
    let mut theirs = ZipArchive::new(Cursor::new(bytes)).expect("read by the crate");
    assert_eq!(archive.len(), theirs.len());
    for number in 0..theirs.len() {
        let mut their = theirs.by_index(number).expect("an entry");
        let our = archive.find(their.name()).expect("found");
        let places = (our.header_offset, Some(our.data.start()), our.data.len(), our.size, our.crc32);
        let expected = (their.header_start(), their.data_start(), their.compressed_size(), their.size(), their.crc32());
        assert_eq!(places, expected, "{}", our.name);
        assert_eq!(our.method == ZipMethod::Stored, their.compression() == CompressionMethod::Stored, "{}", our.name);
        let mut contents = Vec::new();
        their.read_to_end(&mut contents).expect("the crate's bytes");
        let mut stored = our.reserve(u64::MAX).expect("memory");
        stored.copy_from_slice(&bytes[our.data.start() as usize..our.data.end() as usize]);
        assert!(our.contents(stored, &uninterrupted).expect("our bytes") == contents, "{}", our.name);
        assert_eq!(our.check_crc32(crc32(&contents)), None);
    }
    archive
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn archives_of_the_zip_crate_are_read_as_it_reads_them(
        entries in prop::collection::vec((prop::collection::vec(0u8..4, 0..3000), any::<bool>(), 0u16..64, any::<bool>()), 1..12),
    ) {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        for (number, (data, deflate, alignment, large)) in entries.iter().enumerate() {
            let method = if *deflate { CompressionMethod::Deflated } else { CompressionMethod::Stored };
            let options = SimpleFileOptions::default().compression_method(method).with_alignment(*alignment).large_file(*large);
            writer.start_file(format!("archive/data/{number}"), options).unwrap();
            writer.write_all(data).unwrap();
        }
        let archive = compare(&writer.finish().unwrap().into_inner());
        prop_assert!(archive.findings.is_empty(), "{:?}", archive.findings);
    }
}

/// The real files, which `make test` fetches.
fn real(name: &str) -> Vec<u8> {
    let given = std::env::var_os("MAX_WEIGHTS_MODELS").map(PathBuf::from);
    let folder = given.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".models"));
    let path = folder.join(name);
    std::fs::read(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; `make test` fetches the real models (tools/get_models.py DIR --derive)", path.display())
    })
}

#[test]
fn real_checkpoints_are_read_as_the_zip_crate_reads_them() {
    for (name, entries, prefix) in [
        ("crepe-tiny.pth", 46, "archive"),
        ("crepe-full.pth", 46, "archive"),
        ("derived/layer0.bf16.pt", 22, "layer0.bf16"),
        ("silero_vad.jit", 126, "VADr_v6_10_25_noths_re"),
    ] {
        let bytes = real(name);
        let archive = compare(&bytes);
        assert_eq!((archive.len(), archive.prefix()), (entries, prefix), "{name}");
        assert!(archive.findings.is_empty(), "{name}: {:?}", archive.findings);
        let budget = Budget::of_file(bytes.len() as u64);
        let layout = parse(LayoutParser::new(&archive, &HeaderOptions::default(), 1 << 30, budget), &bytes);
        let script = layout.as_ref().is_err_and(|error| error.diagnostic().unwrap().rule.id == "torch-zip.torchscript");
        assert_eq!((layout.is_ok(), script), (!name.ends_with("jit"), name.ends_with("jit")), "{name}");
    }
}

#[test]
fn real_legacy_files_end_with_their_last_storage() {
    let lpips = ["v0.0", "v0.1"]
        .iter()
        .flat_map(|version| ["alex", "squeeze", "vgg"].map(|network| format!("lpips-{version}-{network}.legacy.pth")));
    for name in lpips.chain(["derived/layer0.bf16.legacy.pt".to_owned()]) {
        let bytes = real(&name);
        let legacy = read_legacy(&bytes);
        // Every byte behind the pickles belongs to a storage or is a count, or there would be a finding.
        assert!(legacy.findings.is_empty(), "{name}: {:?}", legacy.findings);
        assert_eq!(legacy.spans.iter().map(|span| span.end()).max(), Some(bytes.len() as u64), "{name}");
        assert!(!legacy.pickled.tensors.is_empty(), "{name}");
    }
}

#[test]
fn the_legacy_file_has_the_bytes_of_the_safetensors_one() {
    let (legacy, plain) = (real("derived/layer0.bf16.legacy.pt"), real("derived/layer0.bf16.safetensors"));
    let read = read_legacy(&legacy);
    let tensors = safetensors::SafeTensors::deserialize(&plain).expect("safetensors");
    let mut ours: Vec<&[u8]> =
        read.spans.iter().map(|span| &legacy[span.start() as usize..span.end() as usize]).collect();
    let mut theirs: Vec<&[u8]> = tensors.iter().map(|(_, view)| view.data()).collect();
    ours.sort_unstable();
    theirs.sort_unstable();
    assert!(ours == theirs);
}
