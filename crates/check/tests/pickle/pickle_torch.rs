//! The proof of PyTorch's archives, and its files from before 1.6.

use crate::support::{protocol_2, scan_archive, scan_as, scan_legacy, tensor};
use max_weights::rules::Verdict;
use max_weights_check::security::pickle::PickleOrigin;

const SYSTEM: &[u8] = b"cos\nsystem\n(S'true'\ntR";

#[test]
fn every_member_of_a_plain_archive_is_accounted_for() {
    let pickle = protocol_2(&tensor("0", 4));
    let (scanned, accounted) = scan_archive(&[
        ("a/data.pkl", &pickle),
        ("a/data/0", &[1; 16]),
        ("a/version", b"3\n"),
        ("a/byteorder", b"little"),
    ]);
    assert_eq!((scanned.ids(), accounted), (vec![], vec![true; 4]));
}

#[test]
fn members_that_belong_to_nothing_are_findings() {
    let pickle = protocol_2(&tensor("0", 4));
    let payload = protocol_2(SYSTEM);
    for (name, bytes) in
        [("a/data/7", &payload[..]), ("a/hook.pkl", &payload), ("b/data/0", &[0; 16]), ("a/version", &payload)]
    {
        let (scanned, accounted) = scan_archive(&[("a/data.pkl", &pickle), ("a/data/0", &[1; 16]), (name, bytes)]);
        assert_eq!(scanned.ids(), ["code.unreferenced-member"], "{name}");
        assert_eq!(accounted, [true, true, false], "{name} is looked at as a file");
    }
    // Its name is that of a storage, and its length is not.
    let (scanned, accounted) = scan_archive(&[("a/data.pkl", &pickle), ("a/data/0", &payload)]);
    assert_eq!(scanned.ids(), ["code.storage", "code.unreferenced-member"]);
    assert_eq!(accounted, [true, false]);
    let (scanned, _) = scan_archive(&[("a/data.pkl", &pickle)]);
    assert_eq!((scanned.ids(), scanned.answer()), (vec!["code.storage"], Verdict::Broken));
}

#[test]
fn a_second_pickle_in_data_pkl_is_found() {
    let scanned = scan_as(&[protocol_2(b"N"), protocol_2(SYSTEM)].concat(), PickleOrigin::TorchZip);
    assert_eq!(scanned.ids(), ["code.malicious-global", "code.trailing-data"]);
}

#[test]
fn programs_need_trust_and_may_not_touch_files() {
    let (none, code) = (protocol_2(b")"), b"def forward(self, x):\n  return torch.add(x, x)\n");
    let members = |code: &'static [u8]| {
        [("a/data.pkl", none.clone()), ("a/constants.pkl", none.clone()), ("a/code/m.py", code.to_vec())]
    };
    let scan = |members: &[(&str, Vec<u8>)]| {
        let members: Vec<(&str, &[u8])> = members.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
        scan_archive(&members)
    };
    let (scanned, accounted) = scan(&members(code));
    assert_eq!((scanned.ids(), scanned.answer()), (vec!["code.torchscript"], Verdict::NeedsTrust));
    assert_eq!(accounted, [true; 3]);
    let (scanned, _) = scan(&members(b"def forward(self, x):\n  torch.save(x, \"/tmp/x\")\n"));
    assert_eq!(scanned.ids(), ["code.script-files", "code.torchscript"]);
    assert_eq!(scanned.evidence("code.script-files"), "torch.save(x, \"/tmp/x\")");
}

#[test]
fn packages_need_trust() {
    let none = protocol_2(b"N");
    let (scanned, _) =
        scan_archive(&[("a/data.pkl", &none), ("a/.data/extern_modules", b"torch"), ("a/m.py", b"import os")]);
    assert_eq!((scanned.ids(), scanned.answer()), (vec!["code.torch-package"], Verdict::NeedsTrust));
}

/// A file from before 1.6, of which one pickle is another, with something behind its storage.
fn legacy(replaced: Option<(usize, &[u8])>, rest: &[u8]) -> Vec<u8> {
    let mut pickles = [
        protocol_2(b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"),
        protocol_2(b"M\xe9\x03"),
        protocol_2(b"}X\x0d\0\0\0little_endian\x88s"),
        Vec::new(),
        protocol_2(b"]X\x01\0\0\x000a"),
    ];
    let view = tensor("0", 4);
    // The references of these files have a sixth member.
    let at = view.windows(2).position(|two| two == b"tQ").expect("a reference");
    pickles[3] = protocol_2(&[&view[..at], b"N", &view[at..]].concat());
    if let Some((number, pickle)) = replaced {
        pickles[number] = pickle.to_vec();
    }
    [&pickles.concat()[..], &4_u64.to_le_bytes(), &[7; 16], rest].concat()
}

#[test]
fn a_file_from_before_1_6_is_looked_at_to_its_end() {
    assert_eq!(scan_legacy(&legacy(None, b"")).ids(), Vec::<&str>::new());
    assert_eq!(scan_legacy(&legacy(None, &protocol_2(SYSTEM))).ids(), ["code.malicious-global", "code.trailing-data"]);
    for number in 0..5 {
        let hidden = protocol_2(&[SYSTEM, b"0N"].concat());
        assert_eq!(scan_legacy(&legacy(Some((number, &hidden)), b"")).answer(), Verdict::Malicious, "{number}");
    }
    let named = protocol_2(b"ccollections\nOrderedDict\n)R");
    assert!(scan_legacy(&legacy(Some((2, &named)), b"")).has("code.legacy-head"));
    let other = protocol_2(b"K\x01");
    assert!(scan_legacy(&legacy(Some((0, &other)), b"")).has("code.legacy-head"));
}

#[test]
fn a_storage_is_where_its_count_says() {
    let mut file = legacy(None, b"");
    let at = file.len() - 24;
    file[at] = 5;
    assert!(scan_legacy(&file).has("code.storage"));
    file.truncate(file.len() - 1);
    assert!(scan_legacy(&file).has("code.storage"));
}
