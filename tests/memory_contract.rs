//! The memory that a hostile file may take, counted: 16 times its length and 64 MB, for any outcome.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use max_weights::format::pickle::{self, PersistentIds};
use max_weights::format::{HeaderOptions, drive, gguf, index, safetensors};
use max_weights::source::InMemory;
use max_weights::workers::uninterrupted;
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const BYTES_PER_FILE_BYTE: usize = 16;
const SCRATCH_BYTES: usize = 64 << 20;

#[track_caller]
fn bounded(what: &str, input: &[u8], read: impl FnOnce(&[u8]) -> String) {
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let outcome = read(input);
    let most = ALLOCATOR.peak_usage().saturating_sub(before);
    let limit = input.len() * BYTES_PER_FILE_BYTE + SCRATCH_BYTES;
    assert!(most <= limit, "{what}: {most} bytes for {}; the limit is {limit}. {outcome}", input.len());
}

fn integers(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|number| [b"J".as_slice(), &number.to_le_bytes()].concat()).collect()
}

fn pickles() -> Vec<(&'static str, Vec<u8>)> {
    let joined = |start: &[u8], parts: Vec<Vec<u8>>, after: &[u8], end: &[u8]| {
        let mut bytes = start.to_vec();
        for part in parts {
            bytes.extend([&part, after].concat());
        }
        bytes.extend(end);
        bytes
    };
    vec![
        ("lists", [b"]0".repeat(3_000_000), b"N.".to_vec()].concat()),
        ("lists in a list", [b"](".to_vec(), b"]".repeat(3_000_000), b"e.".to_vec()].concat()),
        ("lists of one", [b"](".to_vec(), b"]Na".repeat(2_000_000), b"e.".to_vec()].concat()),
        ("tuples", [b")".to_vec(), b"\x85".repeat(3_000_000), b".".to_vec()].concat()),
        ("values on the stack", [b"N".repeat(5_000_000), b".".to_vec()].concat()),
        ("a dict of integers", joined(b"}(", integers(1_000_000), b"N", b"u.")),
        ("dicts of the same key", [b"](".to_vec(), b"}(NNNNNNu".repeat(600_000), b"e.".to_vec()].concat()),
        ("sizes", joined(b"ctorch\nSize\nq\x000](", integers(300_000), b"\x85q\x01h\x00h\x01R", b"e.")),
        ("placeholders", [b"c__main__\nA\nq\x000](".to_vec(), b"h\x00)\x81".repeat(600_000), b"e.".to_vec()].concat()),
        ("storages", {
            let parts = (0..300_000_u32).map(|number| format!("(h\x01h\x00I{number}\nh\x01K\x01tQ").into_bytes());
            joined(b"ctorch\nFloatStorage\nq\x000U\x07storageq\x010](", parts.collect(), b"", b"e.")
        }),
        ("names", {
            let parts = (0..200_000_u32).map(|number| format!("X\x06\0\0\0{number:06}h\x00").into_bytes());
            joined(b"]q\x000}(", parts.collect(), b"", b"u.")
        }),
    ]
}

// The counters belong to the process, so there is one test in this file.
#[test]
fn no_header_and_no_pickle_takes_more_than_its_length_allows() {
    for (what, bytes) in pickles() {
        bounded(what, &bytes, |bytes| {
            let limits = pickle::PickleLimits::default();
            let pickled = match pickle::read(bytes, 0, &limits, PersistentIds::Zip) {
                Ok(pickled) => pickled,
                Err(error) => return error.to_string(),
            };
            pickle::leaves(&pickled, &limits).map_or_else(|error| error.to_string(), |names| names.len().to_string())
        });
    }
    let entry = |name: usize, shape: &str| {
        format!("\"{name}\":{{\"dtype\":\"U8\",\"shape\":[{shape}],\"data_offsets\":[0,0]}}")
    };
    let dims = format!("0{}", ",1".repeat(63));
    let headers = [
        ("tensors", (0..100_000).map(|number| entry(number, "0")).collect::<Vec<_>>().join(",")),
        ("dimensions", (0..40_000).map(|number| entry(number, &dims)).collect::<Vec<_>>().join(",")),
        ("metadata", {
            let pairs = (0..500_000).map(|number| format!("\"{number}\":\"\"")).collect::<Vec<_>>();
            format!("\"__metadata__\":{{{}}}", pairs.join(","))
        }),
        ("a text", format!("\"a\":{{\"shape\":\"{}\"}}", "\u{200b}".repeat(3_000_000))),
        ("an escape", format!("\"\\n{}\":{{}}", "n".repeat(10_000_000))),
    ];
    for (what, json) in headers {
        bounded(what, format!("{{{json}}}").as_bytes(), |header| {
            let outcome = safetensors::parse(header, 8 + header.len() as u64, &HeaderOptions::default());
            outcome.map_or_else(|error| error.to_string(), |header| header.tensors.len().to_string())
        });
    }
    let names = (0..300_000).map(|number| format!("\"{number}\":\"a\"")).collect::<Vec<_>>().join(",");
    bounded("index", format!("{{\"weight_map\":{{{names}}}}}").as_bytes(), |bytes| {
        index::parse(bytes, &HeaderOptions::default())
            .map_or_else(|error| error.to_string(), |index| index.len().to_string())
    });
    let records = (0..200_000_u64).flat_map(|number| {
        let name = number.to_string();
        [&(name.len() as u64).to_le_bytes(), name.as_bytes(), &[0; 4], &[0; 4], &(number * 32).to_le_bytes()].concat()
    });
    let mut file = [b"GGUF\x03\0\0\0".as_slice(), &200_000_u64.to_le_bytes(), &[0; 8]].concat();
    file.extend(records);
    file.resize(file.len().next_multiple_of(32) + 200_000 * 32, 0);
    let source = InMemory::new("a.gguf", file.clone());
    bounded("GGUF", &file, |file| {
        let options = HeaderOptions::default();
        let parser = gguf::GgufParser::new(file[..16 << 10].to_vec(), file.len() as u64, &options);
        let read = drive(parser, &source, &uninterrupted);
        read.map_or_else(|error| error.to_string(), |gguf| gguf.header.tensors.len().to_string())
    });
}
