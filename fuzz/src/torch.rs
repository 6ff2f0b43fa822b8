//! Targets `torch_zip` and `torch_legacy`: any bytes as a file of PyTorch, for as far as the format of the file goes.

use max_weights::budget::Budget;
use max_weights::error::{Diagnostic, Error, Result};
use max_weights::format::torch_legacy::{self, Legacy};
use max_weights::format::torch_zip::{self, CheckedArchive, LayoutParser, ZipEntry, ZipMethod};
use max_weights::format::{HeaderOptions, Parse, ParseProgress};
use max_weights::tensor::Span;
use max_weights::workers::uninterrupted;

use super::random::Random;
use super::{check_message, memory};

/// The most bytes of an entry that are looked at.
const LOOKED_AT: u64 = 1 << 20;

/// Gives a parser the bytes that it requests; it never requests bytes outside the file.
fn answer<P: Parse>(mut parser: P, input: &[u8]) -> Result<P::Output> {
    loop {
        match parser.advance()? {
            ParseProgress::Done(output) => return Ok(output),
            ParseProgress::Need(parts) => {
                assert!(!parts.is_empty());
                for part in parts {
                    let at = usize::try_from(part.offset).expect("an offset in the file");
                    part.bytes.copy_from_slice(&input[at..at + part.bytes.len()]);
                }
            }
        }
    }
}

/// Entries are in the file, in order and without overlap, each after a header of its name, and are found by their names. Their bytes
/// are those of a plain reader, or there is an error.
pub fn check_zip(input: &[u8]) {
    let len = input.len() as u64;
    let options = HeaderOptions::default();
    let archive = match memory::bounded(input.len(), || answer(torch_zip::TorchZipParser::new(len, &options), input)) {
        Ok(archive) => archive,
        Err(error) => return check_error(&error, len, &["torch-zip."]),
    };
    check_findings(&archive.findings, len);
    let mut end = 0;
    for entry in archive.iter() {
        assert!(entry.header_offset >= end && entry.data.end() <= len, "{entry:?}");
        let header = &input[entry.header_offset as usize..entry.data.start() as usize];
        assert!(header.starts_with(b"PK\x03\x04") && header[30..].starts_with(entry.name.as_bytes()), "{entry:?}");
        end = entry.data.end();
        assert_eq!(archive.find(entry.name), Some(entry));
        assert!(!entry.name.contains('\0') && !entry.name.split('/').any(|part| part == ".."), "{entry:?}");
        let contents = memory::bounded(input.len(), || {
            let mut stored = entry.reserve(LOOKED_AT)?;
            stored.copy_from_slice(&input[entry.data.start() as usize..entry.data.end() as usize]);
            entry.contents(stored, &uninterrupted)
        });
        check_contents(&entry, contents, input);
    }
    check_layout(&archive, input);
}

fn check_contents(entry: &ZipEntry<'_>, contents: Result<Vec<u8>>, input: &[u8]) {
    let raw = &input[entry.data.start() as usize..entry.data.end() as usize];
    match contents {
        Ok(bytes) => {
            assert_eq!(bytes.len() as u64, entry.size, "{entry:?}");
            if entry.method == ZipMethod::Stored {
                assert_eq!(bytes, raw, "{entry:?}");
            } else {
                assert_eq!(
                    torch_zip::inflate(raw, entry.size, &uninterrupted).expect("inflated before"),
                    bytes,
                    "{entry:?}"
                );
            }
        }
        Err(error) => check_error(&error, input.len() as u64, &["torch-zip."]),
    }
}

fn check_layout(archive: &CheckedArchive, input: &[u8]) {
    let (options, budget) = (HeaderOptions::default(), Budget::of_file(input.len() as u64));
    let parser = LayoutParser::new(archive, &options, LOOKED_AT as usize, budget);
    match memory::bounded(input.len(), || answer(parser, input)) {
        Ok((layout, bytes)) => {
            let pickle = archive.entry(layout.pickle).expect("an entry");
            assert_eq!(pickle.name, format!("{}/data.pkl", archive.prefix()));
            assert_eq!(bytes.len() as u64, pickle.size);
        }
        Err(error) => check_error(&error, input.len() as u64, &["torch-zip.", "pickle."]),
    }
}

/// Every storage is inside the declared length of the file, after the pickles, and overlaps no other.
pub fn check_legacy(input: &[u8]) {
    let len = input.len() as u64;
    let options = HeaderOptions::default();
    let legacy =
        match memory::bounded(input.len(), || answer(torch_legacy::TorchLegacyParser::new(len, &options), input)) {
            Ok(legacy) => legacy,
            Err(error) => return check_error(&error, len, &["torch-legacy.", "pickle."]),
        };
    check_findings(&legacy.findings, len);
    check_storages(&legacy, len);
}

fn check_storages(legacy: &Legacy, len: u64) {
    let storages = &legacy.pickled.storages;
    assert_eq!(legacy.spans.len(), storages.len());
    let mut wholes: Vec<(&str, Span)> = Vec::new();
    for (storage, span) in storages.iter().zip(&legacy.spans) {
        assert!(span.start() >= legacy.place.end() + 8 && span.end() <= len, "{storage:?}");
        assert_eq!(span.len(), storage.reach(), "{storage:?}");
        if storage.view.is_none() {
            wholes.push((&storage.key, *span));
        }
    }
    wholes.sort_by_key(|(_, span)| (span.start(), span.end()));
    for pair in wholes.windows(2) {
        let apart = pair[0].1.end() + 8 <= pair[1].1.start();
        assert!(apart || (pair[0].0 == pair[1].0 && pair[0].1 == pair[1].1), "{pair:?}");
    }
}

fn check_findings(findings: &[Diagnostic], len: u64) {
    super::check_bounded(findings);
    for finding in findings {
        assert!(finding.offset.is_none_or(|offset| offset <= len), "{finding}");
        check_message(&finding.to_string());
    }
}

/// An error has a rule of the format, a help, and an offset in the file.
fn check_error(error: &Error, len: u64, rules: &[&str]) {
    let fault = error.diagnostic().expect("a fault");
    assert!(rules.iter().any(|rule| fault.rule.id.starts_with(rule)), "{fault}");
    assert!(!fault.help.is_empty(), "{fault}");
    assert!(fault.offset.is_none_or(|offset| offset <= len), "{fault}");
    check_message(&fault.to_string());
}

/// Writes numbers over an input, or over its records: the ends of a file have to stay where they are to be found.
pub fn overwrite(input: &[u8], random: &mut Random) -> Vec<u8> {
    let mut changed = input.to_vec();
    for _ in 0..=random.below(3) {
        if changed.len() < 4 {
            break;
        }
        let records: Vec<usize> = (0..changed.len() - 1).filter(|at| &changed[*at..*at + 2] == b"PK").collect();
        let at = if records.is_empty() || random.one_in(3) {
            random.below(changed.len())
        } else {
            random.pick(&records) + 4 + random.below(56)
        };
        let number = match random.below(6) {
            0 => u64::MAX,
            1 => 0,
            2 => changed.len() as u64,
            3 if !records.is_empty() => random.pick(&records) as u64,
            4 => random.next(),
            _ => random.below(64) as u64,
        };
        let width = random.pick(&[1, 2, 2, 4, 4, 8]);
        for (to, byte) in changed.iter_mut().skip(at).take(width).zip(number.to_le_bytes()) {
            *to = byte;
        }
    }
    changed
}
