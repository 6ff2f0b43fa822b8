//! Compressed files, tar archives, and archives that are only recognised.

use std::io::Write as _;

use max_weights::rules::Verdict;
use max_weights_check::ValidateOptions;

use super::build::{PICKLE, check_with, found, member, rules, tar, zip};

const NONE: [&str; 0] = [];

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// `None` pickled by protocol 4, as Python's lzma, zstandard and lz4 packages compress it.
const XZ: &[u8] = b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4F\x02\0!\x01\x16\0\0\0t/\xe5\xa3\x01\0\x03\x80\x04N.\0(S\xe3\0]\xfc=\xa4\0\x01\x1c\x04o,\x9c\xc1\x1f\xb6\xf3}\x01\0\0\0\0\x04YZ";
const LZMA: &[u8] = b"]\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff\0@\x01\x05t\xd1:\x0f\xff\xff\xfc?\0\0";
const ZSTD: &[u8] = b"(\xb5/\xfd$\x04!\0\0\x80\x04N.t\xaeKH";
const PICKLE_NONE: &[u8] = b"\x80\x04N.";
const LZ4: &[u8] = b"\x04\x22M\x18h@\x04\0\0\0\0\0\0\0\xcd\x04\0\0\x80\x80\x04N.\0\0\0\0";

#[test]
fn a_compressed_pickle_is_unpacked_and_looked_at() {
    for (kind, bytes) in [
        ("gzip", gzip(PICKLE)),
        ("zlib", zlib(PICKLE)),
        ("bzip2", bzip2(PICKLE)),
        ("xz", XZ.to_vec()),
        ("LZMA", LZMA.to_vec()),
        ("zstd", ZSTD.to_vec()),
        ("LZ4", LZ4.to_vec()),
    ] {
        let report = check_with("a.joblib", &bytes, &ValidateOptions::default());
        assert_eq!((rules(&report), report.files[0].kind.clone()), (vec![], format!("pickle ({kind})")), "{kind}");
        // The last bytes of these two are no more than a mark of the end.
        let cut = &bytes[..bytes.len() - if matches!(kind, "LZMA" | "LZ4") { 8 } else { 2 }];
        assert!(found("a.pkl", cut).contains(&"archive.damaged"), "{kind}: a stream that was cut is not whole");
    }
}

#[test]
fn streams_one_behind_the_other_are_one_file() {
    let (start, end) = PICKLE.split_at(2);
    for bytes in [[gzip(start), gzip(end)].concat(), [bzip2(start), bzip2(end)].concat()] {
        let report = check_with("a.pkl.gz", &bytes, &ValidateOptions::default());
        assert_eq!(rules(&report), NONE);
        assert!(report.files[0].kind.starts_with("pickle"), "{}", report.files[0].kind);
    }
}

#[test]
fn what_follows_compressed_data_is_looked_at() {
    assert_eq!(found("a.gz", &[gzip(b"text"), PICKLE.to_vec()].concat()), ["archive.hidden"]);
    assert_eq!(found("a.gz", &[gzip(b"text"), b"\xc3 more".to_vec()].concat()), ["archive.stray"]);
    assert_eq!(found("a.gz", &[gzip(b"text"), vec![0; 100]].concat()), NONE);
}

#[test]
fn a_file_compressed_over_and_over_is_unpacked_up_to_a_limit() {
    let mut bytes = PICKLE.to_vec();
    for _ in 0..6 {
        bytes = gzip(&bytes);
    }
    assert_eq!(found("a.gz", &bytes), NONE);
    for _ in 0..6 {
        bytes = gzip(&bytes);
    }
    assert_eq!(found("a.gz", &bytes), ["archive.deep"]);
}

#[test]
fn a_stream_that_would_fill_the_disk_is_a_bomb() {
    let few = ValidateOptions { unpacked_bytes: 1 << 16, ..ValidateOptions::default() };
    let report = check_with("a.gz", &gzip(&vec![0; 1 << 20]), &few);
    assert_eq!((rules(&report), report.answer()), (vec!["archive.bomb"], Verdict::Broken));
}

#[test]
fn bytes_that_only_begin_like_zlib_are_nothing_that_is_known() {
    let report = check_with("a.dat", b"\x78\x9c\xff\xff\xff\xff\xff\xff", &ValidateOptions::default());
    assert_eq!((rules(&report), report.files[0].kind.as_str()), (vec![], "unknown"));
}

#[test]
fn members_of_tar_archives_are_looked_at() {
    let inner = zip(&[member("../evil", b"x")]);
    let bytes = tar(&[("a.txt", b'0', "", b"text"), ("model.pt", b'0', "", &inner)]);
    let report = check_with("m.nemo", &bytes, &ValidateOptions::default());
    assert_eq!((rules(&report), report.files[0].members), (vec!["archive.path"], 3));
    assert_eq!(report.findings[0].member.as_deref(), Some("model.pt"));
    assert_eq!(found("m.tar.gz", &gzip(&bytes)), ["archive.path"]);
    assert_eq!(found("m.tar", &tar(&[("a.txt", b'0', "", b"text")])), NONE);
}

#[test]
fn names_and_links_of_tar_archives_may_not_lead_out() {
    assert_eq!(found("m.tar", &tar(&[("../a", b'0', "", b"x")])), ["archive.path"]);
    assert_eq!(found("m.tar", &tar(&[("x", b'L', "", b"../../long\0"), ("short", b'0', "", b"x")])), ["archive.path"]);
    assert_eq!(
        found("m.tar", &tar(&[("x", b'x', "", b"14 path=../ab\n"), ("short", b'0', "", b"x")])),
        ["archive.path"]
    );
    for (target, rule) in [("/etc/passwd", vec!["archive.link"]), ("../../x", vec!["archive.link"]), ("b", vec![])] {
        assert_eq!(found("m.tar", &tar(&[("a/link", b'2', target, b"")])), rule, "{target}");
    }
}

#[test]
fn a_tar_archive_that_breaks_off_is_not_whole() {
    let bytes = tar(&[("a.txt", b'0', "", &[b'x'; 2000]), ("b.txt", b'0', "", b"y")]);
    assert_eq!(found("m.tar", &bytes[..1024]), ["archive.damaged"]);
    let mut broken = bytes.clone();
    broken[512 + 2048] = b'!';
    assert_eq!(found("m.tar", &broken), ["archive.damaged"]);
    assert_eq!(found("m.tar", &[bytes, PICKLE.to_vec()].concat()), ["archive.hidden"]);
}

#[test]
fn archives_that_are_not_read_are_not_said_to_be_clean() {
    for (name, bytes) in [("a.bin", b"7z\xbc\xaf\x27\x1c\0\x04".as_slice()), ("a.pt", b"Rar!\x1a\x07\x01\0")] {
        let report = check_with(name, bytes, &ValidateOptions::default());
        assert_eq!((rules(&report), report.answer()), (vec!["archive.unsupported"], Verdict::Broken));
    }
}

#[test]
fn a_file_of_joblib_from_before_its_streams_had_no_mark_is_unpacked() {
    let old = [format!("ZF{:<19}", "0x4").into_bytes(), zlib(PICKLE)].concat();
    assert_eq!(check_with("a.pkl", &old, &ValidateOptions::default()).files[0].kind, "pickle (zlib)");
}

/// An empty stream of LZMA, and the pickle with a model of other properties, as Python's lzma writes them.
const LZMA_EMPTY: &[u8] = b"]\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff\0\x83\xff\xfb\xff\xff\xc0\0\0\0";
const LZMA_OTHER: &[u8] = b"\x12\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff\0@\x01\x0e\xaf\xd5\xd5u_\xff\xfb\xca\xe0\0";
/// The pickle as lz4 -l and lzip write it.
const LZ4_LEGACY: &[u8] = b"\x02!L\x18\x05\0\0\0@\x80\x04N.";
const LZIP: &[u8] = b"LZIP\x01\x0c\0@\x01\x05t\xd1:\x0f\xff\xff\xfc?\0\0\xbf\xae8y\x04\0\0\0\0\0\0\0(\0\0\0\0\0\0\0";

/// The kind of a file's contents; the file breaks no rule.
fn kind_of(name: &str, bytes: &[u8]) -> String {
    let report = check_with(name, bytes, &ValidateOptions::default());
    assert_eq!(rules(&report), NONE, "{name}: {}", report.files[0].kind);
    report.files[0].kind.clone()
}

#[test]
fn a_stream_of_lzma_is_unpacked_whatever_window_and_model_liblzma_takes() {
    let with_window = |window: u32| [&LZMA[..1], &window.to_le_bytes(), &LZMA[5..]].concat();
    let twice = |high: u32| [1 << high, (1 << high) | (1 << high >> 1)];
    for window in (0..27).flat_map(twice).chain([0]) {
        assert_eq!(kind_of("a.joblib", &with_window(window)), "pickle (LZMA)", "a window of {window}");
    }
    assert_eq!(kind_of("a.joblib", LZMA_OTHER), "pickle (LZMA)");
    // Any other window is only accepted if the name declares the format.
    assert_eq!(kind_of("a.lzma", &with_window(12_345)), "pickle (LZMA)");
    assert_eq!(
        check_with("a.dat", &with_window(12_345), &ValidateOptions::default()).files[0].answer_verdict().name(),
        "unknown"
    );
    // More than a decoder may take is not looked at.
    assert_eq!(found("a.joblib", &with_window(u32::MAX)), ["archive.damaged"]);
}

#[test]
fn a_frame_of_zstd_is_unpacked_whatever_window_zstd_takes_by_itself() {
    // A raw block of four bytes, and a window of some power of two.
    let with_window = |log: u8| [&b"(\xb5/\xfd\0"[..], &[(log - 10) << 3], &[4 << 3 | 1, 0, 0], PICKLE_NONE].concat();
    for log in 10..=27 {
        assert_eq!(kind_of("a.joblib", &with_window(log)), "pickle (zstd)", "a window of 2^{log}");
    }
    for log in [28, 31, 41] {
        assert_eq!(found("a.joblib", &with_window(log)), ["archive.damaged"], "a window of 2^{log}");
    }
    let mut wrong = ZSTD.to_vec();
    *wrong.last_mut().unwrap() ^= 1;
    assert_eq!(found("a.joblib", &wrong), ["archive.damaged"], "another checksum");
}

#[test]
fn numbers_that_begin_like_lzma_are_nothing_that_is_known() {
    let numbers: Vec<u8> = [1u64, 5, 9, 200, 1 << 40].iter().flat_map(|number| number.to_le_bytes()).collect();
    for bytes in [numbers.as_slice(), &[&[3][..], &[0; 40]].concat()] {
        let report = check_with("a.dat", bytes, &ValidateOptions::default());
        assert_eq!(
            (rules(&report), report.files[0].answer_verdict().name()),
            (vec![], "unknown"),
            "{}",
            report.files[0].kind
        );
    }
}

#[test]
fn streams_behind_an_empty_one_and_behind_zeros_are_unpacked() {
    let (start, end) = PICKLE.split_at(2);
    for (kind, empty, whole) in [
        ("gzip", gzip(b""), gzip(PICKLE)),
        ("bzip2", bzip2(b""), bzip2(PICKLE)),
        ("LZMA", LZMA_EMPTY.to_vec(), LZMA.to_vec()),
        ("LZMA", LZMA_EMPTY.to_vec(), LZMA_OTHER.to_vec()),
    ] {
        let kind = format!("pickle ({kind})");
        assert_eq!(kind_of("a.pkl", &[&empty[..], &whole].concat()), kind);
        assert_eq!(kind_of("a.pkl", &[&empty[..], &[0; 3], &empty, &[0; 600], &whole, &[0; 9]].concat()), kind);
    }
    assert_eq!(kind_of("a.pkl", &[gzip(start), vec![0; 5], gzip(end)].concat()), "pickle (gzip)");
    assert_eq!(found("a.pkl", &[LZMA, b"\xc3 more"].concat()), ["archive.stray"], "nothing is read ahead and lost");
}

#[test]
fn what_zstd_and_lz4_leave_out_hides_nothing_that_follows() {
    let excluded = |len: u32| [&b"\x53\x2a\x4d\x18"[..], &len.to_le_bytes(), &vec![b'q'; len as usize]].concat();
    for (kind, stream) in [("zstd", ZSTD), ("LZ4", LZ4), ("LZ4", LZ4_LEGACY)] {
        let kind = format!("pickle ({kind})");
        for len in [0, 3, 5000] {
            assert_eq!(kind_of("a.pkl", &[&excluded(len), stream].concat()), kind, "{len} bytes before");
            // The skippable part of a frame in the old format is everything that follows it.
            let behind = if stream == LZ4_LEGACY { Vec::new() } else { excluded(len) };
            assert_eq!(kind_of("a.pkl", &[&excluded(len), &excluded(0), stream, &behind].concat()), kind);
        }
        // What is neither cannot be read to its end.
        assert_eq!(found("a.pkl", &[&excluded(7), b"nothing".as_slice()].concat()), ["archive.damaged"]);
    }
}

#[test]
fn frames_of_lz4_from_before_its_frames_had_a_header_are_unpacked_or_not_clean() {
    assert_eq!(kind_of("a.pkl", LZ4_LEGACY), "pickle (LZ4)");
    assert_eq!(kind_of("a.pkl", &[LZ4, LZ4_LEGACY].concat()), "pickle (LZ4)");
    // Two of them are not distinguished here.
    assert_eq!(found("a.pkl", &[LZ4_LEGACY, LZ4_LEGACY].concat()), ["archive.damaged"]);
}

#[test]
fn lzip_which_python_reads_as_well_is_not_said_to_be_clean() {
    let report = check_with("a.xz", LZIP, &ValidateOptions::default());
    assert_eq!((rules(&report), report.answer()), (vec!["archive.unsupported"], Verdict::Broken));
}
