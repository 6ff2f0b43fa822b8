//! Archives of random bytes, and good ones with changes: no panic, no endless work, and every report comes.

use std::time::Duration;

use max_weights_check::ValidateOptions;
use proptest::prelude::*;

use super::build::{PICKLE, check_with, deflated, member, tar, zip, zip_with};

/// Files with all that is read here.
fn seeds() -> Vec<Vec<u8>> {
    let inner = zip(&[member("a/data.pkl", PICKLE), deflated("b.txt", &[b'x'; 300])]);
    let mut npy = b"\x93NUMPY\x01\0\x3c\0".to_vec();
    npy.extend(format!("{:<60}", "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }").as_bytes());
    npy.extend([1; 4]);
    let packed: Vec<u8> = [12, 14, 93, 95]
        .into_iter()
        .flat_map(|method| zip(&[member("a", &inner).both(|header| header.method = method)]))
        .collect();
    vec![
        zip_with(&[member("in.zip", &inner), member("a.npy", &npy)], &inner),
        tar(&[("a.zip", b'0', "", &inner), ("l", b'x', "", b"14 path=../ab\n")]),
        packed,
        npy,
        b"BZh91AY&SY\x94$|\x0e\0\0\0\x81\0\x03\x90\x04\0 \0!\x9ah3M\x073\x8b\xb9\"\x9c(HJ\x12>\x07\0".to_vec(),
        b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4F\x02\0!\x01\x16\0\0\0t/\xe5\xa3\x01\0\x03\x80\x04N.".to_vec(),
        b"\x5d\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff\0\x40\x01\x02\x03\x04\x05\x06".to_vec(),
        b"\x28\xb5\x2f\xfd\x04\x58\x21\0\0\x80\x04N.\x11\x22\x33\x44".to_vec(),
        b"\x04\x22\x4d\x18\x60\x40\x82\x05\0\0\x80hello\0\0\0\0".to_vec(),
        b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x4b\x4c\x4a\x06\0\xc2\x41\x24\x35\x03\0\0\0".to_vec(),
        b"\x08\x08\x12\x07pytorch\x3a\x10\x0a\x0e\x22\x04Relu\x2a\x06\x0a\x01a\x2a\x01b".to_vec(),
        [
            b"\x89HDF\r\n\x1a\n".as_slice(),
            b"\x01\x08\x40\x01x\x12\0\0/etc/passwd\0/data\0{\"class_name\": 1, \"config\": []}",
        ]
        .concat(),
        [
            b"\x46\0\0\0\0\0\0\0".as_slice(),
            b"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},\"__metadata__\":{}}",
            b"abc",
        ]
        .concat(),
    ]
}

fn look(bytes: &[u8]) {
    let options = ValidateOptions {
        unpacked_bytes: 1 << 20,
        timeout: Some(Duration::from_secs(20)),
        ..ValidateOptions::default()
    };
    let report = check_with("a.bin", bytes, &options);
    assert_eq!(report.files.len(), 1);
    let timed_out = report.findings.iter().any(|finding| finding.message.contains("in the given time"));
    assert!(!timed_out, "a file of {} bytes took more than 20 s", bytes.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_good_file_with_changes_is_looked_at(
        seed in 0..13usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let mut bytes = seeds()[seed].clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        look(&bytes);
    }

    #[test]
    fn random_bytes_after_a_magic_are_looked_at(seed in 0..13usize, keep in 4..24usize, rest in prop::collection::vec(any::<u8>(), 0..600)) {
        let seed = seeds()[seed].clone();
        look(&[&seed[..keep.min(seed.len())], &rest].concat());
    }

    #[test]
    fn parts_of_two_files_are_looked_at(a in 0..13usize, b in 0..13usize, at in any::<prop::sample::Index>(), from in any::<prop::sample::Index>()) {
        let (a, b) = (seeds()[a].clone(), seeds()[b].clone());
        look(&[&a[..at.index(a.len())], &b[from.index(b.len())..]].concat());
    }
}
