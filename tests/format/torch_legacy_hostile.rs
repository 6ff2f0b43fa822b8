//! Legacy streams that lie, and streams that are merely odd: each case is a test with the rule and the offset that it must name.

#![allow(clippy::result_large_err)] // a fault is compared here, not passed up

use crate::legacy_files::{Made, Saved, list, magic, object, protocol, system};
use crate::source_support::{Counts, Trial};
use max_weights::error::{Diagnostic, Result};
use max_weights::format::torch_legacy::{self, Legacy};
use max_weights::format::{HeaderLimits, HeaderOptions, drive};
use max_weights::source::{InMemory, Source};
use max_weights::workers::uninterrupted;

fn read_with(bytes: &[u8], limits: &HeaderLimits) -> Result<Legacy> {
    let options = HeaderOptions { limits: limits.clone(), ..HeaderOptions::default() };
    let parser = torch_legacy::TorchLegacyParser::new(bytes.len() as u64, &options);
    drive(parser, &InMemory::new("a.pt", bytes.to_vec()), &uninterrupted)
}

fn try_read(made: &Made) -> Result<Legacy> {
    read_with(&made.bytes, &HeaderLimits::default())
}

#[track_caller]
fn read(made: &Made) -> Legacy {
    try_read(made).expect("accepted")
}

#[track_caller]
fn refused(made: &Made, rule: &str, offset: usize) -> Diagnostic {
    let fault = try_read(made).expect_err("refused").diagnostic().expect("a fault").clone();
    assert_eq!((fault.rule.id, fault.offset), (rule, Some(offset as u64)), "{fault}");
    assert!(!fault.help.is_empty(), "{fault}");
    fault
}

#[track_caller]
fn noted(made: &Made, rule: &str, offset: usize) -> Legacy {
    let legacy = read(made);
    assert_eq!(legacy.findings.len(), 1, "{:?}", legacy.findings);
    assert_eq!((legacy.findings[0].rule.id, legacy.findings[0].offset), (rule, Some(offset as u64)));
    legacy
}

fn two() -> Vec<Saved> {
    vec![Saved::floats("10", 5), Saved::floats("20", 3)]
}

/// Where the spans lie, and how long they are.
fn spans(legacy: &Legacy) -> Vec<(usize, usize)> {
    legacy.spans.iter().map(|span| (span.start() as usize, span.len() as usize)).collect()
}

#[test]
fn a_file_as_torch_writes_it_is_read_without_findings() {
    let made = Made::new(&two(), &["10", "20"]);
    let legacy = read(&made);
    assert!(legacy.findings.is_empty());
    assert_eq!((legacy.place.start() as usize, legacy.place.end() as usize), (made.object, made.keys));
    assert_eq!(spans(&legacy), [(made.counts[0] + 8, 20), (made.counts[1] + 8, 12)]);
}

#[test]
fn storages_lie_in_the_order_of_the_list_of_keys() {
    let made = Made::new(&two(), &["20", "10"]);
    assert_eq!(spans(&read(&made)), [(made.counts[1] + 8, 20), (made.counts[0] + 8, 12)]);
}

#[test]
fn only_the_pickles_and_the_counts_are_fetched() {
    let saved = vec![Saved::floats("10", 1 << 20), Saved::floats("20", 1 << 20)];
    let made = Made::new(&saved, &["10", "20"]);
    let source = Trial::of("a.pt", &made.bytes);
    let options = HeaderOptions::default();
    let parser = torch_legacy::TorchLegacyParser::new(source.len(), &options);
    let legacy = drive(parser, &source, &uninterrupted);
    assert_eq!(legacy.expect("accepted").spans.len(), 2);
    assert_eq!(source.counts(), Counts { batches: 2, parts: 2, bytes: (64 << 10) + 8 });
}

#[test]
fn a_pickle_longer_than_the_first_bytes_is_read_on() {
    let saved: Vec<Saved> = (0..3000).map(|i| Saved::floats(&format!("{i:0100}"), 1)).collect();
    let keys: Vec<&str> = saved.iter().map(|saved| &*saved.key).collect();
    let made = Made::new(&saved, &keys);
    assert!(made.keys > 200_000, "{}", made.keys);
    assert_eq!(read(&made).spans.len(), 3000);
    let limits = HeaderLimits { header_bytes: 100_000, ..HeaderLimits::default() };
    let error = read_with(&made.bytes, &limits).expect_err("refused");
    let fault = error.diagnostic().expect("a fault");
    assert_eq!((fault.rule.id, fault.offset), ("torch-legacy.header-too-long", Some(made.object as u64)), "{fault}");
}

#[test]
fn a_file_cut_at_any_byte_is_refused() {
    let made = Made::new(&two(), &["10", "20"]);
    for len in 0..made.bytes.len() {
        let cut = Made { bytes: made.bytes[..len].to_vec(), ..made.clone() };
        refused(&cut, "torch-legacy.truncated", len);
    }
}

#[test]
fn another_magic_number() {
    let whole = Made::new(&two(), &["10", "20"]);
    // One more byte, of the number.
    let longer = [b"\x80\x02\x8a\x0b", &magic(b"")[4..14], b"\x01."].concat();
    for first in [b"\x80\x02K\x01.".to_vec(), list(&[]), magic(b"\x6d"), longer] {
        let bytes = [&first[..], &whole.bytes[magic(b"").len()..]].concat();
        refused(&Made { bytes, ..whole.clone() }, "torch-legacy.magic", 0);
    }
    let signed = [b"\x80\x02\x8a\x0b", &magic(b"")[4..14], b"\0."].concat();
    let bytes = [&signed[..], &whole.bytes[magic(b"").len()..]].concat();
    assert_eq!(read(&Made { bytes, ..whole }).spans.len(), 2);
}

#[test]
fn another_protocol_number() {
    let made = Made::of([magic(b""), protocol(1002), system(true)], &two(), &["10", "20"]);
    let fault = refused(&made, "torch-legacy.protocol", magic(b"").len());
    assert!(fault.message.contains("1002"), "{fault}");
    let made = Made::of([magic(b""), list(&[]), system(true)], &two(), &["10", "20"]);
    refused(&made, "torch-legacy.protocol", magic(b"").len());
}

#[test]
fn a_machine_that_is_no_dict() {
    let made = Made::of([magic(b""), protocol(1001), list(&["x"])], &two(), &["10", "20"]);
    refused(&made, "torch-legacy.machine", magic(b"").len() + protocol(1001).len());
}

#[test]
fn a_big_endian_machine_is_noted_and_its_elements_are_little_endian() {
    let made = Made::of([magic(b""), protocol(1001), system(false)], &two(), &["10", "20"]);
    let at = magic(b"").len() + protocol(1001).len();
    let legacy = noted(&made, "torch-legacy.byteorder", at);
    assert_eq!(spans(&legacy), [(made.counts[0] + 8, 20), (made.counts[1] + 8, 12)]);
}

#[test]
fn a_global_outside_the_object_is_never_more_than_a_name() {
    // os.system("id") as the pickle of the protocol.
    let attack = b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.".to_vec();
    let made = Made::of([magic(b""), attack, system(true)], &two(), &["10", "20"]);
    refused(&made, "torch-legacy.protocol", magic(b"").len());
}

#[test]
fn a_count_that_is_not_that_of_the_pickle() {
    let made = Made::new(&two(), &["10", "20"]);
    for count in [4i64, 6, 0, -5, i64::MIN, i64::MAX] {
        let mut changed = made.clone();
        changed.bytes[made.counts[0]..][..8].copy_from_slice(&count.to_le_bytes());
        let fault = refused(&changed, "torch-legacy.count", made.counts[0]);
        assert!(fault.message.contains(&format!("5 elements according to the pickle, but {count}")), "{fault}");
    }
}

#[test]
fn more_elements_than_the_file_has_bytes() {
    let mut saved = two();
    saved[1].claim = 1 << 40;
    let made = Made::new(&saved, &["10", "20"]);
    let fault = refused(&made, "torch-legacy.truncated", made.bytes.len());
    assert!(fault.message.contains("storage '20' has 1099511627776 elements of 4 bytes"), "{fault}");
}

#[test]
fn a_list_of_keys_that_is_something_else() {
    let mut made = Made::new(&two(), &["10", "20"]);
    made.bytes.splice(made.keys.., b"\x80\x02K\x02.".iter().copied());
    refused(&made, "torch-legacy.keys", made.keys);
    made.bytes.splice(made.keys.., b"\x80\x02]K\x0aa.".iter().copied());
    refused(&made, "torch-legacy.keys", made.keys);
}

#[test]
fn keys_that_are_missing_unknown_or_there_twice() {
    let made = Made::new(&two(), &["10"]);
    refused(&made, "torch-legacy.missing-storage", made.keys);
    let made = Made::new(&two(), &["10", "30", "20"]);
    refused(&made, "torch-legacy.unknown-storage", made.keys);
    let made = Made::new(&two(), &["10", "20", "10"]);
    refused(&made, "torch-legacy.duplicate-key", made.keys);
}

#[test]
fn bytes_after_the_last_storage_are_noted() {
    let mut made = Made::new(&two(), &["10", "20"]);
    let end = made.bytes.len();
    made.bytes.extend_from_slice(&magic(b""));
    noted(&made, "torch-legacy.trailing-data", end);
}

// Views.

fn viewed(views: &[(&str, u64, u64)]) -> Made {
    let saved: Vec<Saved> = views.iter().map(|view| Saved::floats("10", 5).view(view.0, view.1, view.2)).collect();
    Made::new(&saved, &["10"])
}

#[test]
fn a_view_is_a_part_of_its_storage() {
    let made = viewed(&[("11", 1, 3), ("12", 4, 1), ("11", 1, 3), ("10", 0, 5)]);
    let start = made.counts[0] + 8;
    let legacy = read(&made);
    assert_eq!(legacy.pickled.storages.len(), 3);
    assert_eq!(spans(&legacy), [(start + 4, 12), (start + 16, 4), (start, 20)]);
}

#[test]
fn a_view_beyond_its_storage() {
    for (offset, elements) in [(0, 6), (1, 5), (6, 0), (i64::MAX as u64, 1), (1, i64::MAX as u64)] {
        let error = try_read(&viewed(&[("11", offset, elements)])).expect_err("refused");
        let rule = error.diagnostic().expect("a fault").rule.id;
        assert!(rule == "torch-legacy.view" || rule.starts_with("pickle."), "{error}");
    }
}

#[test]
fn a_view_at_two_places_or_with_the_key_of_a_storage() {
    for views in [[("11", 1, 3), ("11", 1, 2)], [("11", 1, 3), ("10", 1, 2)]] {
        let error = try_read(&viewed(&views)).expect_err("refused");
        let rule = error.diagnostic().expect("a fault").rule.id;
        assert!(rule == "torch-legacy.view" || rule.starts_with("pickle."), "{error}");
    }
}

#[test]
fn the_object_may_name_anything() {
    let made = Made::new(&two(), &["10", "20"]);
    let attack = [&object(&two())[..object(&two()).len() - 1], b"cos\nsystem\nX\x02\x00\x00\x00id\x85Ra."].concat();
    let mut bytes = made.bytes.clone();
    bytes.splice(made.object..made.keys, attack);
    let legacy = read(&Made { bytes, ..made });
    assert!(legacy.pickled.globals.iter().any(|global| format!("{global:?}").contains("system")));
    assert_eq!(legacy.spans.len(), 2);
}
