//! What the name of a file says, held against its bytes.

use max_weights::rules::Verdict;
use max_weights_check::{Level, ValidateOptions};

use super::build::{PICKLE, check_with, found, member, rules, zip};

const NONE: [&str; 0] = [];

#[test]
fn what_can_run_code_under_the_name_of_what_cannot_needs_trust() {
    let archive = zip(&[member("a/data.pkl", PICKLE)]);
    for name in
        ["model.safetensors", "MODEL.SAFETENSORS", "config.json", "model.gguf", "model.onnx", "a.npy", "notes.txt"]
    {
        for bytes in [PICKLE, &archive] {
            let report = check_with(name, bytes, &ValidateOptions::default());
            assert_eq!((rules(&report), report.answer()), (vec!["container.suffix"], Verdict::NeedsTrust), "{name}");
        }
    }
    for name in ["model.pt", "model.bin", "model", "model.pkl", "model.npz"] {
        assert_eq!(found(name, &archive), NONE, "{name}");
    }
    let header = ValidateOptions { level: Level::Header, ..ValidateOptions::default() };
    assert_eq!(rules(&check_with("model.safetensors", PICKLE, &header)), ["container.suffix"]);
}

#[test]
fn a_program_under_the_name_of_weights_is_malicious() {
    let report = check_with("model.bin", b"\x7fELF\x02\x01\x01\0\0\0", &ValidateOptions::default());
    assert_eq!((rules(&report), report.answer()), (vec!["container.executable"], Verdict::Malicious));
    assert_eq!(found("lib.so", b"\x7fELF\x02\x01\x01\0\0\0"), NONE);
}

#[test]
fn a_path_file_of_python_with_a_line_that_is_run_is_malicious() {
    assert_eq!(found("evil.pth", b"/a/path\nimport os; os.system('true')\n"), ["container.path-file"]);
    assert_eq!(found("paths.pth", b"# a comment\n/a/path\n./another\n"), NONE);
    assert_eq!(found("model.pth", b"Not found\n"), ["format.unknown"]);
    let padded = [&b"#\n".repeat(1 << 20)[..], b"\rimport os\r"].concat();
    assert_eq!(found("evil.pth", &padded), ["container.path-file"]);
    assert!(found("evil.pth", b"\xff\xfe\0\nimport os\n").contains(&"container.path-file"));
}

#[test]
fn what_stands_in_place_of_weights_is_broken() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5000000\n";
    for (name, bytes, rule) in [
        ("model.safetensors", pointer.as_slice(), "format.lfs-pointer"),
        ("model.bin", b"<!DOCTYPE html><html></html>", "format.web-page"),
        ("model.pt", b"", "format.empty"),
        ("config.json", b"", "format.empty"),
        ("model.pt", &[0; 4096], "format.zeros"),
        ("model.safetensors", b"{\"error\": \"Unauthorized\"}", "format.json"),
        ("model.safetensors", b"Entry not found", "format.unknown"),
        ("model.gguf", b"\xc3\xc3\xc3\xc3\xc3\xc3\xc3\xc3\xc3", "format.unknown"),
    ] {
        let report = check_with(name, bytes, &ValidateOptions::default());
        assert_eq!((rules(&report), report.answer()), (vec![rule], Verdict::Broken), "{name}");
    }
    let report = check_with("model.bin", pointer, &ValidateOptions::default());
    assert!(report.findings[0].message.contains("5.0 MB"), "{report:?}");
}

#[test]
fn good_files_of_other_kinds_break_no_rule() {
    for (name, bytes) in [
        ("README.md", b"# A model\n\nThis is (a) text.\n".as_slice()),
        ("index.html", b"<html></html>"),
        ("config.json", b"{\"a\": 1}"),
        ("tokenizer.model", b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02"),
        ("vocab.txt", b"[PAD]\n[UNK]\n"),
        ("merges.txt", b"#version: 0.2\ni n\n"),
        ("picture.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"),
        ("__init__.py", b""),
    ] {
        assert_eq!(found(name, bytes), NONE, "{name}");
    }
    // Raw data is no checkpoint, even if it is given as one.
    assert_eq!(found("raw.bin", &[0x3f, 0xc3, 0x91, 0xee, 0x3f, 0xc3, 0x91, 0xee, 1]), ["format.unknown"]);
}

#[test]
fn what_is_not_understood_is_said_to_be_so() {
    let report = check_with("raw.bin", &[0x3f, 0xff, 0x91, 0xee], &ValidateOptions::default());
    assert_eq!((report.files[0].kind.as_str(), report.files[0].depth.name()), ("unknown", "recognised"));
    assert!(report.files[0].note.is_some());
}

#[test]
fn a_pickle_that_begins_like_a_picture_or_an_archive_is_malicious() {
    let system: &[u8] = b"0cos\nsystem\n(S'true'\ntR.";
    let archive = super::build::tar(&[("Ncos\nsystem\n(S'true'\ntR.", b'0', "", b"text")]);
    for (name, bytes) in [
        ("picture.gif", [b"GIF89a\0\0\0", system].concat()),
        ("model.gguf", [b"GGUF\x03\0\0\0\x01", system].concat()),
        // For ONNX, a field of 127 bytes that it does not know.
        ("model.onnx", [b"J\x7f\0\0\0", system, &[b'x'; 127 - 3 - 24]].concat()),
        ("model.tar", archive),
        ("pointer", [b"Version https://git-lfs\n", system].concat()),
    ] {
        let report = check_with(name, &bytes, &ValidateOptions::default());
        assert_eq!(report.answer(), Verdict::Malicious, "{name}: {report:?}");
        assert!(
            report.findings.iter().any(|finding| finding.evidence.as_deref() == Some("os.system('true')")),
            "{name}"
        );
        if name != "pointer" {
            assert!(rules(&report).contains(&"container.pickle"), "{name}: {report:?}");
        }
    }
    // A long name that begins as an instruction does, and nothing that it would name.
    let fine = super::build::tar(&[("Vision.ckpt", b'0', "", &[0; 5000])]);
    assert_eq!(found("m.nemo", &fine), NONE);
}
