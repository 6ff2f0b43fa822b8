//! Zip files that lie, and zip files that are merely odd: each case is a test with the rule and the offset that it must name.

#![allow(clippy::result_large_err)] // a fault is compared here, not passed up

use crate::source_support::Trial;
use crate::zip_files::{
    COMPRESSED, CRC, FLAGS, METHOD, OFFSET, Part, SIZE, Zip, assert_fault, parse, plain_parts, read, torch_parts,
    try_read,
};
use max_weights::error::{Diagnostic, Error};
use max_weights::format::torch_zip::{self, CheckedArchive, MAX_ZIP_NAME_BYTES, ZipMethod};
use max_weights::format::{HeaderLimits, HeaderOptions, drive};
use max_weights::source::Source as _;
use max_weights::workers::uninterrupted;

#[track_caller]
fn refused(zip: &Zip, rule: &str, offset: usize) -> Diagnostic {
    assert_fault(try_read(zip).expect_err("refused"), rule, offset)
}

/// The one finding of a file that must be accepted.
#[track_caller]
fn noted(zip: &Zip, rule: &str, offset: usize) -> CheckedArchive {
    let archive = read(zip);
    assert_eq!(archive.findings.len(), 1, "{:?}", archive.findings);
    assert_eq!((archive.findings[0].rule.id, archive.findings[0].offset), (rule, Some(offset as u64)));
    archive
}

fn plain() -> Zip {
    Zip::new(&plain_parts())
}

fn torch() -> Zip {
    Zip::with(&torch_parts(), true, b"")
}

// What has to be read.

#[test]
fn a_file_as_torch_writes_it_is_read_without_findings() {
    let zip = torch();
    let archive = read(&zip);
    assert_eq!((archive.len(), archive.prefix(), archive.findings.len()), (5, "archive", 0));
    let storage = archive.storage("0").expect("a storage");
    assert_eq!((storage.name, storage.method, storage.size), ("archive/data/0", ZipMethod::Stored, 40));
    assert_eq!(zip.bytes[storage.data.start() as usize..storage.data.end() as usize], [1; 40]);
    assert_eq!((archive.storage("2"), archive.member("data/0").map(|entry| entry.number)), (None, Some(2)));
}

#[test]
fn the_data_begins_where_the_entrys_own_header_says() {
    let mut parts = plain_parts();
    parts[1].local_extra = [b"FB\x03\x00".to_vec(), b"ZZZ".to_vec()].concat();
    parts[2].extra = b"\x99\x99\x02\x00ab".to_vec();
    let zip = Zip::new(&parts);
    let archive = read(&zip);
    for (key, byte) in [("0", 1), ("1", 2)] {
        let data = archive.storage(key).expect("a storage").data;
        assert!(zip.bytes[data.start() as usize..data.end() as usize].iter().all(|have| *have == byte));
        assert_eq!(data.len(), if key == "0" { 40 } else { 24 });
    }
}

#[test]
fn sizes_in_zip64_fields_are_read_from_there() {
    let mut parts = plain_parts();
    let sizes = [24u64.to_le_bytes(), 24u64.to_le_bytes()].concat();
    parts[2].local_extra = [&b"\x01\x00\x10\x00"[..], &sizes].concat();
    let zip = Zip::new(&parts);
    let offset = (zip.locals[2] as u64).to_le_bytes();
    parts[2].extra = [&b"\x01\x00\x18\x00"[..], &sizes, &offset].concat();
    let zip = Zip::with(&parts, true, b"");
    let large = [0xff; 4];
    let zip = zip.both(2, SIZE, large).both(2, COMPRESSED, large).central(2, OFFSET, large);
    let archive = read(&zip);
    assert_eq!(archive.storage("1").expect("there").size, 24);
    let extra = zip.locals[2] + 30 + 14;
    refused(&zip.clone().put(extra + 4, 25u64.to_le_bytes()), "torch-zip.local-size", zip.locals[2]);
    refused(&zip.put(extra, b"\x02"), "torch-zip.extra", extra);
}

#[test]
fn a_checksum_of_zero_was_not_computed() {
    let zip = plain().both(1, CRC, [0; 4]);
    let archive = read(&zip);
    let entry = archive.storage("0").expect("there");
    assert_eq!(entry.check_crc32(1234), None);
    let archive = read(&plain());
    let entry = archive.storage("0").expect("there");
    assert_eq!(entry.check_crc32(torch_zip::crc32(&[1; 40])), None);
    assert_eq!(entry.check_crc32(1234).map(|fault| fault.rule.id), Some("torch-zip.crc"));
}

// Two headers for one entry.

#[test]
fn another_name_in_the_entrys_own_header() {
    let zip = plain();
    let at = zip.locals[1];
    refused(&zip.clone().put(at + 30, b"archive/evil.p"), "torch-zip.local-name", at);
    let fault = refused(&zip.put(at + 26, [13]), "torch-zip.local-name", at);
    assert!(fault.message.contains("the name archive/data/, but the directory archive/data/0"), "{fault}");
}

#[test]
fn flag_bits_that_differ_between_the_headers() {
    let zip = plain();
    let at = zip.locals[1];
    refused(&zip.clone().local(1, FLAGS, [1, 8]), "torch-zip.local-flags", at);
    refused(&zip.clone().local(1, FLAGS, [8, 8]), "torch-zip.local-flags", at);
    refused(&zip.central(1, FLAGS, [8, 8]), "torch-zip.local-flags", at);
}

#[test]
fn flag_bits_that_nobody_knows() {
    for bit in [4, 5, 7, 8, 9, 10, 12, 14, 15] {
        let zip = plain().both(1, FLAGS, (1u16 << bit).to_le_bytes());
        refused(&zip, "torch-zip.flags", zip.centrals[1]);
    }
    for bit in [1, 2, 11] {
        assert!(read(&plain().both(1, FLAGS, (1u16 << bit).to_le_bytes())).findings.is_empty());
    }
}

#[test]
fn another_method_in_the_entrys_own_header() {
    let zip = plain().local(1, METHOD, [8]);
    refused(&zip, "torch-zip.local-method", zip.locals[1]);
}

#[test]
fn another_size_in_the_entrys_own_header() {
    for field in [SIZE, COMPRESSED] {
        for size in [0, 39, 41] {
            let zip = plain().local(1, field, [size]);
            refused(&zip, "torch-zip.local-size", zip.locals[1]);
        }
    }
}

#[test]
fn another_checksum_in_the_entrys_own_header() {
    let zip = plain();
    refused(&zip.clone().local(1, CRC, [0; 4]), "torch-zip.local-crc", zip.locals[1]);
    refused(&zip.clone().local(1, CRC, [9; 4]), "torch-zip.local-crc", zip.locals[1]);
}

#[test]
fn where_sizes_follow_the_data_zeros_before_it_are_legal_and_nothing_else_is() {
    let zip = torch();
    refused(&zip.clone().local(2, SIZE, [39]), "torch-zip.local-size", zip.locals[2]);
    refused(&zip.clone().local(2, CRC, [9; 4]), "torch-zip.local-crc", zip.locals[2]);
    assert!(read(&zip.local(2, SIZE, [40])).findings.is_empty());
}

#[test]
fn no_header_where_the_directory_says() {
    let zip = plain();
    let at = zip.locals[1];
    refused(&zip.clone().put(at, b"PK\x07\x08"), "torch-zip.header", at);
    let between = (at + 4) as u32;
    refused(&zip.central(1, OFFSET, between.to_le_bytes()), "torch-zip.header", at + 4);
}

// Places.

#[test]
fn two_entries_with_one_header() {
    let zip = plain();
    let first = zip.locals[1];
    let zip = zip.central(2, OFFSET, (first as u32).to_le_bytes());
    let at = first;
    let error = try_read(&zip).expect_err("refused");
    // The name of the second is not that of the header, unless it was made so, and then it is there twice.
    assert_fault(error, "torch-zip.overlap", at);
}

#[test]
fn an_entry_inside_another() {
    let inner = Zip::new(&[Part::stored("archive/data/1", [3; 8])]);
    let mut parts = plain_parts();
    parts[1] = Part::stored("archive/data/0", &inner.bytes[..inner.centrals[0]]);
    let zip = Zip::new(&parts);
    let inside = zip.locals[1] + 30 + 14;
    let zip = zip.central(2, OFFSET, (inside as u32).to_le_bytes()).central(2, SIZE, [8]).central(2, COMPRESSED, [8]);
    refused(&zip, "torch-zip.overlap", inside);
}

#[test]
fn an_entry_that_reaches_into_the_directory() {
    let zip = plain();
    let (at, size) = (zip.locals[2], [30u8]);
    refused(&zip.both(2, SIZE, size).both(2, COMPRESSED, size), "torch-zip.outside", at);
}

#[test]
fn an_entry_outside_the_file() {
    let zip = plain();
    let at = zip.centrals[2];
    refused(&zip.clone().central(2, OFFSET, [0xf0, 0xff, 0xff, 0xff]), "torch-zip.outside", at);
    let size = [0, 0, 0, 0x7f];
    refused(&zip.both(2, SIZE, size).both(2, COMPRESSED, size), "torch-zip.outside", at);
}

#[test]
fn a_stored_entry_of_two_sizes() {
    let zip = plain().both(1, SIZE, [41]);
    refused(&zip, "torch-zip.size", zip.centrals[1]);
}

#[test]
fn a_folder_with_bytes() {
    let mut parts = plain_parts();
    parts[1].name = b"archive/data/".to_vec();
    let zip = Zip::new(&parts);
    refused(&zip, "torch-zip.folder", zip.centrals[1]);
    parts[1] = Part::stored("archive/data/", b"");
    assert!(read(&Zip::new(&parts)).findings.is_empty());
}

#[test]
fn bytes_before_the_archive() {
    let zip = plain();
    let moved = [b"#!/bin/sh\n".to_vec(), zip.bytes.clone()].concat();
    let made = Zip { bytes: moved, end: zip.end + 10, ..zip.clone() };
    refused(&made, "torch-zip.directory-place", zip.end + 10);
    // With all offsets put right: another archive, say, whose entries the directory does not name.
    let mut parts = plain_parts();
    parts[0].listed = false;
    refused(&Zip::new(&parts), "torch-zip.prepended", 0);
}

#[test]
fn an_entry_that_the_directory_does_not_name() {
    let mut parts = plain_parts();
    parts[1].listed = false;
    let zip = Zip::new(&parts);
    noted(&zip, "torch-zip.gap", zip.locals[1]);
}

#[test]
fn bytes_before_the_directory_that_belong_to_no_entry() {
    let mut parts = plain_parts();
    parts[2].listed = false;
    let zip = Zip::new(&parts);
    noted(&zip, "torch-zip.gap", zip.locals[2]);
}

#[test]
fn a_directory_in_another_order() {
    let parts = plain_parts();
    let zip = Zip::new(&parts);
    let [first, second] = [zip.centrals[1], zip.centrals[2]];
    let records = [&zip.bytes[second..zip.end], &zip.bytes[first..second]].concat();
    let archive = noted(&zip.put(first, records), "torch-zip.order", Zip::new(&parts).centrals[0]);
    assert_eq!(archive.iter().map(|entry| entry.name).collect::<Vec<_>>()[1..], ["archive/data/0", "archive/data/1"]);
}

// Names.

#[test]
fn two_entries_of_one_name() {
    let mut parts = plain_parts();
    parts[2].name = b"archive/data.pkl".to_vec();
    let zip = Zip::new(&parts);
    refused(&zip, "torch-zip.duplicate-name", zip.locals[2]);
}

#[test]
fn names_that_readers_take_for_something_else() {
    let long = vec![b'n'; MAX_ZIP_NAME_BYTES + 1];
    let names: [&[u8]; 8] = [
        b"",
        b"archive/data.pkl\0.txt",
        b"/etc/passwd",
        b"archive/../x",
        b"..",
        b"archive\\..\\x",
        b"archive/\xff",
        &long,
    ];
    for name in names {
        let mut parts = plain_parts();
        parts[1].name = name.to_vec();
        let zip = Zip::new(&parts);
        refused(&zip, "torch-zip.name", zip.centrals[1] + 46);
    }
    for name in ["archive/..x", "archive/x..", "archive/é"] {
        let mut parts = plain_parts();
        parts[1].name = name.into();
        assert!(read(&Zip::new(&parts)).find(name).is_some());
    }
}

#[test]
fn a_second_name_in_an_extra_field() {
    let field =
        |name: &[u8]| [b"\x75\x70", &(5 + name.len() as u16).to_le_bytes()[..], &[1, 0, 0, 0, 0], name].concat();
    let mut parts = plain_parts();
    parts[1].extra = field(b"archive/data.pkl");
    let zip = Zip::new(&parts);
    refused(&zip, "torch-zip.name", zip.centrals[1]);
    parts[1].extra = field(b"archive/data/0");
    assert!(read(&Zip::new(&parts)).findings.is_empty());
}

#[test]
fn extra_fields_that_lie() {
    let twice = b"\x01\x00\x00\x00\x01\x00\x00\x00";
    for extra in [&b"\x01"[..], b"\x01\x00\x05\x00abc", twice] {
        let mut parts = plain_parts();
        parts[1].extra = extra.to_vec();
        let zip = Zip::new(&parts);
        refused(&zip, "torch-zip.extra", zip.centrals[1]);
    }
    let zip = plain().both(1, SIZE, [0xff; 4]);
    refused(&zip, "torch-zip.extra", zip.centrals[1]);
}

#[test]
fn entries_outside_the_folder_of_the_first() {
    let mut parts = plain_parts();
    parts[1].name = b"archives/data.pkl".to_vec();
    let zip = Zip::new(&parts);
    let archive = noted(&zip, "torch-zip.outside-prefix", zip.locals[1]);
    assert!(archive.findings[0].message.contains("1 of the entries, the first named 'archives/data.pkl'"));
}

// Kinds.

#[test]
fn an_encrypted_archive_says_so() {
    for bit in [0, 6, 13] {
        let zip = plain().both(1, FLAGS, (1u16 << bit).to_le_bytes());
        let fault = refused(&zip, "torch-zip.encrypted", zip.centrals[1]);
        assert!(fault.message.contains("an encrypted zip"), "{fault}");
        assert!(matches!(try_read(&zip), Err(Error::Unsupported(_))));
    }
    let zip = plain().both(1, METHOD, [99]);
    refused(&zip, "torch-zip.encrypted", zip.centrals[1]);
}

#[test]
fn another_compression_is_named() {
    for (method, name) in [(9, "Deflate64"), (12, "bzip2"), (14, "LZMA"), (93, "Zstandard"), (77, "unknown")] {
        let zip = plain().both(1, METHOD, [method]);
        let fault = refused(&zip, "torch-zip.method", zip.centrals[1]);
        assert!(fault.message.contains(name), "{fault}");
    }
}

#[test]
fn a_part_of_a_split_archive() {
    let zip = plain();
    for at in [4, 6] {
        refused(&zip.clone().put(zip.end + at, [1]), "torch-zip.split", zip.end);
    }
    refused(&zip.clone().put(zip.end + 8, [2]), "torch-zip.split", zip.end);
    refused(&zip.clone().central(1, 34, [1]), "torch-zip.split", zip.centrals[1]);
}

// The end.

#[test]
fn a_file_cut_at_any_byte_is_refused() {
    for zip in [plain(), torch(), Zip::with(&torch_parts(), true, b"a comment")] {
        for len in 0..zip.bytes.len() {
            let cut = Zip { bytes: zip.bytes[..len].to_vec(), ..zip.clone() };
            let fault = try_read(&cut).expect_err("cut").diagnostic().expect("a fault").clone();
            assert!(fault.rule.id == "torch-zip.truncated" && !fault.help.is_empty(), "{len}: {fault}");
        }
    }
}

#[test]
fn a_count_that_is_not_that_of_the_directory() {
    let zip = plain();
    let claim = |count: u8| zip.clone().put(zip.end + 8, [count, 0, count, 0]);
    refused(&claim(2), "torch-zip.count", zip.centrals[2]);
    refused(&claim(4), "torch-zip.count", zip.end);
    refused(&claim(0), "torch-zip.count", zip.centrals[0]);
    let many = zip.clone().put(zip.end + 8, [0xff; 4]);
    refused(&many, "torch-zip.count", zip.end);
}

#[test]
fn a_directory_that_is_elsewhere() {
    let zip = plain();
    for (field, change) in [(12, 1), (16, 1)] {
        let at = zip.end + field;
        let changed = zip.bytes[at] - change;
        refused(&zip.clone().put(at, [changed]), "torch-zip.directory-place", zip.end);
    }
    refused(&zip.clone().put(zip.end + 16, [0xff; 4]), "torch-zip.directory-place", zip.end);
}

#[test]
fn something_else_in_the_directory() {
    let zip = plain();
    refused(&zip.clone().put(zip.centrals[1], b"PK\x05\x05"), "torch-zip.directory", zip.centrals[1]);
    refused(&zip.clone().put(zip.centrals[2] + 32, [1]), "torch-zip.directory", zip.centrals[2]);
}

#[test]
fn bytes_after_the_end() {
    let mut zip = plain();
    let end = zip.end;
    zip.raw(b"#");
    refused(&zip, "torch-zip.trailing-data", end);
}

#[test]
fn an_archive_in_the_comment_of_another() {
    // A reader from the front of the comment sees the first archive; one from the end of the file the second.
    let inner = Zip::new(&[Part::stored("archive/data.pkl", b"other")]);
    let outer = Zip::with(&plain_parts(), false, &inner.bytes);
    refused(&outer, "torch-zip.two-ends", outer.end);
}

#[test]
fn an_end_in_a_comment() {
    let outer = Zip::with(&plain_parts(), false, b"PK\x05\x06");
    refused(&outer, "torch-zip.truncated", outer.end + 22);
    let fake = plain().bytes[plain().end..].to_vec();
    let outer = Zip::with(&plain_parts(), false, &fake);
    refused(&outer, "torch-zip.two-ends", outer.end);
    let outer = Zip::with(&plain_parts(), false, &[&fake[..], b"x"].concat());
    refused(&outer, "torch-zip.trailing-data", outer.end + 22);
}

#[test]
fn an_ordinary_comment_is_noted() {
    let comment = vec![b'c'; 65_535];
    for comment in [&b"made by hand"[..], &comment] {
        let zip = Zip::with(&plain_parts(), false, comment);
        noted(&zip, "torch-zip.comment", zip.end + 22);
    }
}

#[test]
fn two_end_records_that_disagree() {
    let zip = torch();
    let (zip64, end) = (zip.zip64.expect("there"), zip.end);
    for field in [16, 20, 24, 32, 40, 48] {
        let changed = zip.bytes[zip64 + field] ^ 1;
        refused(&zip.clone().put(zip64 + field, [changed]), "torch-zip.zip64", end);
    }
    let locator = end - 20;
    refused(&zip.clone().put(zip64 + 4, [45]), "torch-zip.zip64", zip64);
    refused(&zip.clone().put(locator + 8, [0]), "torch-zip.zip64", locator);
    refused(&zip.clone().put(zip64, b"PK\x06\x05"), "torch-zip.zip64", locator);
    refused(&zip.clone().put(locator + 4, [1]), "torch-zip.split", locator);
    refused(&zip.clone().put(locator + 16, [2]), "torch-zip.split", locator);
    // Without its locator, the record is in the way.
    refused(&zip.clone().put(locator, [0]), "torch-zip.directory-place", end);
    // Where the small record says that it does not know, the large one counts.
    assert_eq!(read(&zip.clone().put(end + 8, [0xff; 12])).len(), 5);
}

#[test]
fn zip64_numbers_of_any_size_are_refused_before_anything_is_allocated() {
    let zip = torch();
    let (zip64, end) = (zip.zip64.expect("there"), zip.end);
    let zip = zip.put(end + 8, [0xff; 12]);
    let huge = u64::MAX.to_le_bytes();
    refused(&zip.clone().put(zip64 + 40, huge), "torch-zip.directory-place", end);
    refused(&zip.clone().put(zip64 + 48, huge), "torch-zip.directory-place", end);
    let error = try_read(&zip.clone().put(zip64 + 24, huge).put(zip64 + 32, huge)).expect_err("refused");
    assert_eq!(error.diagnostic().map(|fault| fault.rule.id), Some("torch-zip.directory-too-long"));
    let limits = HeaderLimits { header_bytes: 100, ..HeaderLimits::default() };
    let options = HeaderOptions { limits, ..HeaderOptions::default() };
    let error =
        parse(torch_zip::TorchZipParser::new(zip.bytes.len() as u64, &options), &zip.bytes).expect_err("refused");
    assert_fault(error, "torch-zip.directory-too-long", zip.centrals[0]);
}

#[test]
fn extra_fields_beyond_the_limit_are_refused_before_they_are_read() {
    let mut parts = plain_parts();
    let numbers = [&b"\x01\0\x10\0"[..], &40u64.to_le_bytes(), &40u64.to_le_bytes()].concat();
    let padding = [&b"\x99\x99"[..], &20_000u16.to_le_bytes(), &vec![0; 20_000]].concat();
    parts[1].local_extra = [numbers, padding].concat();
    let zip = Zip::new(&parts).local(1, COMPRESSED, [0xff; 8]);
    assert_eq!(read(&zip).entry(1).map(|entry| entry.size), Some(40));
    let limits = HeaderLimits { header_bytes: 20_000, ..HeaderLimits::default() };
    let options = HeaderOptions { limits, ..HeaderOptions::default() };
    let source = Trial::of("a.zip", &zip.bytes);
    let error =
        drive(torch_zip::TorchZipParser::new(source.len(), &options), &source, &uninterrupted).expect_err("refused");
    assert_fault(error, "torch-zip.directory-too-long", zip.centrals[0]);
    // The end of the file, and the headers.
    assert_eq!(source.counts().batches, 2);
}

#[test]
fn a_size_that_deflate_cannot_reach() {
    let mut parts = plain_parts();
    parts[1] = Part::deflated("archive/data/0", [0; 1000]);
    parts[1].size = parts[1].data.len() as u32 * 1032 + 1;
    let zip = Zip::new(&parts);
    refused(&zip, "torch-zip.ratio", zip.centrals[1]);
    parts[1].size -= 1;
    assert_eq!(read(&Zip::new(&parts)).len(), 3);
}

#[test]
fn findings_without_end_are_counted_no_further() {
    let mut parts: Vec<Part> = (0..400).map(|i| Part::stored(format!("archive/{i}"), b"x")).collect();
    parts.iter_mut().skip(1).step_by(2).for_each(|part| part.listed = false);
    let archive = read(&Zip::new(&parts));
    assert_eq!(archive.findings.len(), max_weights::error::MAX_FINDINGS + 1);
    assert_eq!(archive.findings.last().map(|fault| fault.rule.id), archive.findings.first().map(|fault| fault.rule.id));
}
