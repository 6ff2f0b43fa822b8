//! Zip archives: both views of the members, and what lies between them.

use max_weights::rules::Verdict;
use max_weights_check::{Depth, Level, ValidateOptions};

use super::build::{PICKLE, check_with, crc32, deflated, found, member, rules, zip, zip_with};

const NONE: [&str; 0] = [];

#[test]
fn archives_as_programs_write_them_break_no_rule() {
    let follow = |header: &mut super::build::Header| {
        header.flags = 8;
    };
    let mut streamed = member("a.txt", b"text").both(follow);
    (streamed.local.crc, streamed.local.packed, streamed.local.size) = (0, 0, 0);
    let mut next = member("b.txt", b"more");
    next.before =
        b"PK\x07\x08".iter().copied().chain(crc32(b"text").to_le_bytes()).chain([4, 0, 0, 0, 4, 0, 0, 0]).collect();
    let mut aligned = member("archive/data.pkl", PICKLE);
    aligned.local.extra = b"FB\x04\0ZZZZ".to_vec();
    for (name, bytes) in [
        ("a.zip", zip(&[member("a.txt", b"text"), deflated("b.txt", &[b'x'; 5000]), member("folder/", b"")])),
        ("streamed.zip", zip(&[streamed, next])),
        ("aligned.pt", zip(&[aligned, member("archive/version", b"3\n")])),
        ("empty.zip", zip(&[])),
        ("zero_crc.pt", zip(&[member("a/version", b"3\n").both(|header| header.crc = 0)])),
    ] {
        assert_eq!(found(name, &bytes), NONE, "{name}");
    }
}

#[test]
fn members_are_counted_and_the_archive_is_known_by_them() {
    let report = check_with(
        "a.pt",
        &zip(&[member("a/data.pkl", PICKLE), member("a/version", b"3\n")]),
        &ValidateOptions::default(),
    );
    let file = &report.files[0];
    assert_eq!((file.kind.as_str(), file.members, file.depth), ("PyTorch", 2, Depth::Structure));
    let inner = zip(&[member("x.npy", b"")]);
    let report = check_with("a.zip", &zip(&[member("i.npz", &inner)]), &ValidateOptions::default());
    assert_eq!((report.files[0].kind.as_str(), report.files[0].members), ("zip", 2));
}

#[test]
fn a_name_that_differs_between_the_headers_is_malicious() {
    let mut lies = member("a.bin", PICKLE);
    lies.local.name = b"data.pkl".to_vec();
    let bytes = zip(&[lies]);
    assert_eq!(found("a.zip", &bytes), ["archive.local"]);
    assert_eq!(check_with("a.zip", &bytes, &ValidateOptions::default()).answer(), Verdict::Malicious);
}

#[test]
fn every_other_difference_between_the_headers_is_malicious() {
    let changes: [fn(&mut super::build::Header); 5] = [
        |header| header.method = 8,
        |header| header.crc ^= 1,
        |header| header.packed -= 1,
        |header| header.size += 1,
        |header| header.extra = b"up\x0a\0\x01....x.txt".to_vec(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut lies = member("a.txt", b"some text");
        change(&mut lies.local);
        let rules = found("a.zip", &zip(&[lies]));
        assert!(rules.contains(&"archive.local"), "{number}: {rules:?}");
    }
}

#[test]
fn a_mark_of_encryption_that_is_none_is_malicious_and_hides_nothing() {
    for flag in [0x1, 0x20, 0x40] {
        let bytes = zip(&[member("a.txt", b"text").both(|header| header.flags |= flag)]);
        assert_eq!(found("a.zip", &bytes), ["archive.flags"], "{flag}");
        let bytes = zip(&[deflated("a.txt", b"text text text").both(|header| header.flags |= flag)]);
        assert_eq!(found("a.zip", &bytes), ["archive.flags"], "{flag}");
    }
    let mut only_local = member("a.txt", b"text");
    only_local.local.flags |= 1;
    assert_eq!(found("a.zip", &zip(&[only_local])), ["archive.local"]);
}

#[test]
fn an_encrypted_member_is_not_looked_at_and_that_is_said() {
    let bytes = zip(&[member("a.pkl", &[0x55; 40]).both(|header| {
        header.flags |= 1;
        header.crc = 77;
        header.size = 28;
    })]);
    let report = check_with("a.zip", &bytes, &ValidateOptions::default());
    assert_eq!(super::build::rules(&report), ["archive.encrypted"]);
    assert_eq!(report.answer(), Verdict::Broken);
}

#[test]
fn a_method_that_is_not_read_is_not_skipped_silently() {
    let bytes = zip(&[member("a.pkl", PICKLE).both(|header| header.method = 99)]);
    assert_eq!(found("a.zip", &bytes), ["archive.method"]);
}

#[test]
fn names_that_are_there_twice_are_malicious_unless_they_are_the_same() {
    let twice = zip(&[member("a.txt", b"one"), member("a.txt", b"two")]);
    assert_eq!(found("a.zip", &twice), ["archive.duplicate"]);
    assert_eq!(found("a.zip", &zip(&[member("a.txt", b"one"), member("a.txt", b"one")])), NONE);
    assert_eq!(found("a.zip", &zip(&[member("a.txt", b"one"), member("A.TXT", b"two")])), ["archive.case"]);
}

#[test]
fn names_that_lead_out_of_the_archive_are_malicious() {
    for name in ["../a", "a/../../b", "/etc/passwd", "C:\\x", "..\\x", "a\0b"] {
        assert_eq!(found("a.zip", &zip(&[member(name, b"x")])), ["archive.path"], "{name}");
    }
    assert_eq!(found("a.zip", &zip(&[member("a/..b/c..", b"x")])), NONE);
}

#[test]
fn links_may_lead_to_members_only() {
    let link = |target: &str| {
        let mut link = member("a/link", target.as_bytes());
        link.mode = 0o120_777;
        zip(&[link])
    };
    assert_eq!(found("a.zip", &link("/etc/passwd")), ["archive.link"]);
    assert_eq!(found("a.zip", &link("../../x")), ["archive.link"]);
    assert_eq!(found("a.zip", &link("../x")), NONE);
}

#[test]
fn a_wrong_checksum_is_found_in_small_members_always_and_in_all_at_content() {
    let bytes = zip(&[member("a.pkl", PICKLE).both(|header| header.crc ^= 1)]);
    assert_eq!(found("a.zip", &bytes), ["archive.crc"]);
    let large = zip(&[member("a.bin", &vec![7; 3 << 20]).both(|header| header.crc ^= 1)]);
    assert_eq!(found("a.zip", &large), NONE);
    let content = ValidateOptions { level: Level::Content, ..ValidateOptions::default() };
    assert_eq!(super::build::rules(&check_with("a.zip", &large, &content)), ["archive.crc"]);
}

#[test]
fn a_pickle_before_between_or_behind_members_is_found() {
    let archive = zip(&[member("a.txt", b"text")]);
    let before = [PICKLE, &archive].concat();
    assert_eq!(found("a.pt", &before), ["archive.hidden", "container.polyglot"]);
    let mut second = member("b.txt", b"text");
    second.before = PICKLE.to_vec();
    assert_eq!(found("a.zip", &zip(&[member("a.txt", b"text"), second])), ["archive.hidden"]);
    assert_eq!(found("a.zip", &[&archive, PICKLE].concat()), ["archive.hidden"]);
    assert_eq!(found("a.zip", &zip_with(&[member("a.txt", b"text")], PICKLE)), ["archive.comment", "archive.hidden"]);
}

#[test]
fn other_bytes_before_between_or_behind_members_are_told() {
    let archive = zip(&[member("a.txt", b"text")]);
    assert_eq!(found("a.bin", &[b"\xc3\xc3\xc3 some bytes".as_slice(), &archive].concat()), ["archive.prefix"]);
    assert_eq!(found("a.zip", &[&archive, b"\xc3 some bytes".as_slice()].concat()), ["archive.stray"]);
    let mut second = member("b.txt", b"text");
    second.before = b"\xc3 stray bytes".to_vec();
    assert_eq!(found("a.zip", &zip(&[member("a.txt", b"text"), second.clone()])), ["archive.stray"]);
    second.before = vec![0; 100];
    assert_eq!(found("a.zip", &zip(&[member("a.txt", b"text"), second])), NONE);
    assert_eq!(found("a.zip", &zip_with(&[member("a.txt", b"text")], b"a comment")), ["archive.comment"]);
}

#[test]
fn a_member_that_no_directory_lists_is_found() {
    let mut hidden = member("hook.pkl", PICKLE);
    hidden.listed = false;
    let report =
        check_with("a.zip", &zip(&[member("a.txt", b"x"), hidden, member("b.txt", b"y")]), &ValidateOptions::default());
    assert!(super::build::rules(&report).contains(&"archive.hidden"), "{report:?}");
    assert!(report.files[0].members >= 3, "it is looked at, too: {report:?}");
}

#[test]
fn two_archives_in_one_file_are_both_looked_at() {
    let (first, second) = (zip(&[member("a.pkl", PICKLE)]), zip(&[member("b.pkl", PICKLE)]));
    let report = check_with("a.zip", &[first.clone(), second.clone()].concat(), &ValidateOptions::default());
    assert_eq!(report.answer(), Verdict::Malicious);
    assert_eq!(report.files[0].members, 2, "{report:?}");
    // One archive in the comment of the other.
    let report = check_with("a.zip", &zip_with(&[member("a.pkl", PICKLE)], &second), &ValidateOptions::default());
    assert!(super::build::rules(&report).contains(&"archive.two-ends"), "{report:?}");
    assert_eq!(report.answer(), Verdict::Malicious);
}

#[test]
fn a_directory_with_another_number_of_members_than_its_end_says_is_malicious() {
    let mut bytes = zip(&[member("a.txt", b"x"), member("b.txt", b"y")]);
    let end = bytes.len() - 22;
    bytes[end + 10] = 1;
    assert_eq!(found("a.zip", &bytes), ["archive.local"]);
}

#[test]
fn an_end_for_large_archives_that_contradicts_the_plain_one_is_malicious() {
    let bytes = zip(&[member("a.txt", b"x")]);
    let end = bytes.len() - 22;
    let (head, plain) = bytes.split_at(end);
    let wide = |entries: u64| {
        let (size, offset) = (plain[12..16].to_vec(), plain[16..20].to_vec());
        let mut wide = b"PK\x06\x06\x2c\0\0\0\0\0\0\0\x2d\0\x2d\0\0\0\0\0\0\0\0\0".to_vec();
        wide.extend(entries.to_le_bytes());
        wide.extend(entries.to_le_bytes());
        wide.extend([size, vec![0; 4], offset, vec![0; 4]].concat());
        wide.extend(b"PK\x06\x07\0\0\0\0");
        wide.extend((end as u64).to_le_bytes());
        wide.extend(1u32.to_le_bytes());
        [head, &wide, plain].concat()
    };
    assert_eq!(found("a.zip", &wide(1)), NONE);
    // A second record, of two members, to which the locator leads.
    let (mut two, at) = (wide(1), end as u64 + 56 + 20 + 22);
    let second = wide(2)[end..end + 56].to_vec();
    two[end + 56 + 8..end + 56 + 16].copy_from_slice(&at.to_le_bytes());
    two.extend(second);
    assert!(found("a.zip", &two).contains(&"archive.zip64"));
    assert!(found("a.zip", &wide(2)).contains(&"archive.zip64"));
}

#[test]
fn members_that_lie_over_one_another_are_malicious() {
    let mut bytes = zip(&[member("a.txt", &[b'x'; 100]), member("b.txt", b"y")]);
    // The first member says that it reaches over the second.
    let directory = bytes.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    for at in [18, 22, directory + 20, directory + 24] {
        bytes[at] = 130;
    }
    let rules = found("a.zip", &bytes);
    assert!(rules.contains(&"archive.overlap"), "{rules:?}");
}

#[test]
fn an_archive_without_its_end_is_looked_through_by_the_headers_of_its_members() {
    let whole = zip(&[member("a.pkl", PICKLE), deflated("b.txt", &[b'x'; 3000])]);
    let directory = whole.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    let report = check_with("a.zip", &whole[..directory], &ValidateOptions::default());
    assert_eq!((super::build::rules(&report), report.files[0].members), (vec!["archive.damaged"], 2));
    let mut lost = whole;
    lost[0] = b'X';
    assert!(found("a.bin", &lost).contains(&"archive.damaged"));
}

#[test]
fn an_archive_that_ends_within_the_header_of_a_member_hides_no_other() {
    let whole = zip(&[member("a/data.pkl", PICKLE), member("a/version", b"3\n")]);
    let second = whole.windows(4).rposition(|four| four == b"PK\x03\x04").expect("a second member");
    for end in [4, 6, 20, 29, second + 4, second + 6, second + 29] {
        let report = check_with("a.zip", &whole[..end], &ValidateOptions::default());
        assert_eq!((rules(&report), report.answer()), (vec!["archive.damaged"], Verdict::Broken), "{end}");
    }
    // Nothing but the beginning of an end.
    assert_eq!(found("a.zip", b"PK\x05\x06abc"), ["archive.damaged"]);
}

#[test]
fn nested_archives_are_looked_into_up_to_a_limit() {
    let mut bytes = zip(&[member("a.txt", b"x")]);
    for _ in 0..5 {
        bytes = zip(&[member("in.zip", &bytes)]);
    }
    assert_eq!(found("a.zip", &bytes), NONE);
    let shallow = ValidateOptions { nesting: 3, ..ValidateOptions::default() };
    let report = check_with("a.zip", &bytes, &shallow);
    assert_eq!((super::build::rules(&report), report.answer()), (vec!["archive.deep"], Verdict::Broken));
    assert_eq!(report.findings[0].member.as_deref(), Some("in.zip!/in.zip!/in.zip"));
}

#[test]
fn no_more_is_unpacked_than_is_allowed() {
    let few = ValidateOptions { unpacked_bytes: 1 << 20, ..ValidateOptions::default() };
    let bytes = zip(&[deflated("zeros.txt", &vec![b'x'; 4 << 20])]);
    let report = check_with("a.zip", &bytes, &few);
    assert_eq!((super::build::rules(&report), report.answer()), (vec!["archive.bomb"], Verdict::Broken));
}

#[test]
fn what_is_hidden_does_not_hide_what_is_broken_and_the_other_way_round() {
    let bytes = zip(&[
        member("broken.pkl", PICKLE).both(|header| header.method = 99),
        deflated("cut.txt", b"some text").both(|header| header.size = 5),
        member("../evil", b"x"),
    ]);
    assert_eq!(found("a.zip", &bytes), ["archive.local", "archive.method", "archive.path"]);
}

#[test]
fn programs_that_a_server_runs_need_trust() {
    let bytes = zip(&[member("MAR-INF/MANIFEST.json", b"{}"), member("handler.py", b"import torch\n")]);
    let report = check_with("m.mar", &bytes, &ValidateOptions::default());
    assert_eq!((super::build::rules(&report), report.answer()), (vec!["archive.program"], Verdict::NeedsTrust));
    let run = report.findings.iter().find(|finding| finding.rule.id == "repository.program-run").expect("a program");
    assert_eq!(run.member.as_deref(), Some("handler.py"));
}

#[test]
fn bytes_behind_the_compressed_data_of_a_member_are_told() {
    let followed = |rest: &[u8]| {
        let mut member = deflated("a.txt", b"some text");
        member.bytes.extend(rest);
        let packed = member.bytes.len() as u32;
        zip(&[member.both(|header| header.packed = packed)])
    };
    assert_eq!(found("a.zip", &followed(b"\xc3 more")), ["archive.local"]);
    assert_eq!(found("a.zip", &followed(PICKLE)), ["archive.hidden"]);
}

#[test]
fn a_file_of_a_distributed_checkpoint_is_archives_one_behind_the_other() {
    let first = zip(&[member("a/data.pkl", PICKLE)]);
    let second = zip(&[member("a/data.pkl", PICKLE), member("../x", b"")]);
    let report = check_with("__0_0.distcp", &[first.clone(), first.clone()].concat(), &ValidateOptions::default());
    assert_eq!((super::build::rules(&report), report.files[0].members), (vec![], 2));
    assert_eq!(found("__0_0.distcp", &[first.clone(), second].concat()), ["archive.path"]);
    assert!(!found("__0_0.distcp", &[first.clone(), PICKLE.to_vec(), first].concat()).is_empty());
}

#[test]
fn configurations_and_templates_in_an_archive_are_looked_at_as_files_are() {
    let yaml = b"a: !!python/object/apply:os.system ['true']\n";
    let template = b"{{ x.__class__.__mro__[1].__subclasses__() }}";
    let config = br#"{"chat_template": "{{ x.__class__.__mro__ }}"}"#;
    for (name, bytes, rule) in [
        ("inner/tokenizer_config.json", config.as_slice(), "repository.template-escape"),
        ("model_config.yaml", yaml.as_slice(), "repository.yaml-call"),
        ("extra/chat_template.jinja", template.as_slice(), "repository.template-escape"),
    ] {
        let report = check_with("a.zip", &zip(&[member(name, bytes)]), &ValidateOptions::default());
        let found: Vec<&str> = report.findings.iter().map(|finding| finding.rule.id).collect();
        assert!(found.contains(&rule), "{report:?}");
        assert_eq!(report.answer(), Verdict::Malicious, "{name}");
    }
    let fine = zip(&[
        member("a.yaml", b"a: 1\n"),
        member("a.jinja", b"{{ messages }}"),
        member("config.json", b"{\"model_type\": \"llama\"}"),
    ]);
    assert_eq!(check_with("a.zip", &fine, &ValidateOptions::default()).findings, []);
}

#[test]
fn a_stored_member_that_is_longer_than_it_says_is_malicious() {
    let bytes = zip(&[member("a.txt", b"text and more").both(|header| header.size = 4)]);
    assert_eq!(found("a.zip", &bytes), ["archive.local"]);
}

#[test]
fn what_lies_behind_many_members_with_records_of_their_sizes_is_found() {
    let mut members: Vec<super::build::Member> = (0..1_200)
        .map(|number| {
            let mut member = member(&number.to_string(), b"");
            member.before = [b"PK\x07\x08".as_slice(), &[0; 12]].concat();
            member
        })
        .collect();
    members[0].before.clear();
    members[1_199].before = PICKLE.to_vec();
    assert_eq!(found("a.zip", &zip(&members)), ["archive.hidden"]);
    for member in &mut members {
        member.before = b"\xc3 stray".to_vec();
    }
    assert!(found("a.zip", &zip(&members)).contains(&"archive.many"));
}
