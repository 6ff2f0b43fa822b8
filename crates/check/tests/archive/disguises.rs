//! Members and configurations that a loader reads otherwise than they look.

use max_weights::rules::Verdict;
use max_weights_check::{Report, ValidateOptions};

use super::build::{PICKLE, check_with, deflated, found, member, rules, tar, zip};

const EVIL: &str = r#"{"module": "os", "class_name": "function", "config": "system", "registered_name": "function"}"#;
const HDF5: &[u8] = b"\x89HDF\r\n\x1a\n";

fn answer(name: &str, bytes: &[u8]) -> Verdict {
    check_with(name, bytes, &ValidateOptions::default()).answer()
}

fn has(report: &Report, id: &str) -> bool {
    report.findings.iter().any(|finding| finding.rule.id == id)
}

#[test]
fn a_configuration_is_read_as_python_reads_it() {
    let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let utf32 = |text: &str| text.chars().flat_map(|c| u32::from(c).to_be_bytes()).collect::<Vec<u8>>();
    for (why, config) in [
        ("UTF-16", utf16(EVIL)),
        ("UTF-16 with a mark", [vec![0xff, 0xfe], utf16(EVIL)].concat()),
        ("UTF-32", utf32(EVIL)),
        ("an escape in a key", EVIL.replace("class_name", "cl\\u0061ss_name").into_bytes()),
        ("no number", EVIL.replacen('{', "{\"x\": NaN, ", 1).into_bytes()),
    ] {
        assert_eq!(found("m.keras", &zip(&[member("config.json", &config)])), ["keras.malicious"], "{why}");
    }
    let escaped = r#"{"text": "\u00e9\u0026", "vocab": {"\u0120a": 1}}"#;
    assert_eq!(found("m.zip", &zip(&[member("other.json", escaped.as_bytes())])), [""; 0]);
}

#[test]
fn a_configuration_in_hdf5_is_found_however_it_is_written_and_wherever_the_file_begins() {
    let long = EVIL.replacen('{', &format!("{{\"x\": \"{}\", ", "y".repeat(9000)), 1);
    let escaped = EVIL.replace("class_name", "cl\\u0061ss_name");
    let spaces = EVIL.replacen('{', "{ \n\t", 1).replace("\": ", "\" : ");
    for config in [EVIL, &long, &escaped, &spaces] {
        let file = [HDF5, &[0; 100], config.as_bytes(), &[0; 20]].concat();
        assert_eq!(found("m.h5", &file), ["keras.malicious"], "{}", &config[..20]);
        for (name, first) in [("m.h5", &b"\x89PNG\r\n\x1a\n"[..]), ("m.hdf5", b"\xfe\x01"), ("m.dat", b"MATLAB")] {
            let mut behind = first.to_vec();
            behind.resize(2048, 0);
            assert_eq!(answer(name, &[&behind, &file[..]].concat()), Verdict::Malicious, "{name}");
        }
    }
    let other = [HDF5, &[0; 100], br#"{"encoding-type": "dict", "x": 1}"#, &[b'{'; 50], b"{\"\x01"].concat();
    assert_eq!(found("m.h5", &other), [""; 0]);
}

#[test]
fn functions_that_load_are_no_part_of_a_keras_model() {
    let function = |module: &str, name: &str| {
        let config = EVIL.replace("\"os\"", &format!("\"{module}\"")).replace("system", name);
        found("m.keras", &zip(&[member("config.json", config.as_bytes())]))
    };
    assert_eq!(function("keras.models", "load_model"), ["keras.malicious"]);
    assert_eq!(function("keras.src.legacy.saving.legacy_h5_format", "load_model_from_hdf5"), ["keras.malicious"]);
    assert_eq!(function("keras.activations", "relu"), [""; 0]);
    let operation = |name: &str| {
        let config = format!(r#"{{"class_name": "TFOpLambda", "config": {{"function": "{name}"}}}}"#);
        found("m.h5", &[HDF5, config.as_bytes()].concat())
    };
    assert_eq!(operation("io.write_file"), ["keras.malicious"]);
    assert_eq!(operation("math.add"), [""; 0]);
}

#[test]
fn an_archive_behind_other_bytes_is_found_by_the_suffix() {
    let archive = zip(&[member("config.json", EVIL.as_bytes())]);
    let behind = [b"\x89PNG\r\n\x1a\n", &archive[..], b"x"].concat();
    for (name, bytes) in [("m.keras", behind.clone()), ("in-a-tar.keras", tar(&[("a.png", b'0', "", &behind)]))] {
        let report = check_with(name, &bytes, &ValidateOptions::default());
        assert!(rules(&report).contains(&"keras.malicious"), "{name}: {report:?}");
    }
}

#[test]
fn a_graph_names_its_operations_in_any_order_and_with_long_numbers() {
    let node = |head: &[u8]| [&[0x0a, 20, 0x0a, 1, b'n'], head, b"WriteFile"].concat();
    for head in [&b"\x12\x09"[..], b"\x12\x89\0", b"\x12\x89\x80\x80\0", b"\x92\0\x89\0"] {
        let graph = [b"\x7a\x03abc".to_vec(), node(head)].concat();
        assert_eq!(found("saved_model.pb", &graph), ["tensorflow.operation"], "{head:?}");
    }
    assert_eq!(found("saved_model.pb", &node(b"\x0a\x09")), [""; 0], "it is the name of a node");
    let lite =
        |name: &[u8]| [b"\x1c\0\0\0TFL3".to_vec(), (name.len() as u32).to_le_bytes().to_vec(), name.to_vec()].concat();
    assert!(found("m.tflite", &lite(b"FlexWriteFile")).contains(&"tensorflow.operation"));
    assert_eq!(found("m.tflite", &lite(b"FlexSoftplus")), ["tflite.damaged"]);
}

#[test]
fn texts_in_archives_are_looked_at_as_files_of_a_repository_are() {
    let program = b"import os\nos.system('true')\n";
    let template = br#"{"chat_template": "{{ lipsum.__globals__ }}"}"#;
    for (name, bytes, id) in [
        ("a/handler.py", &program[..], "repository.program-run"),
        ("x.py", program, "repository.call"),
        ("config.json", br#"{"auto_map": {"AutoModel": "modeling_x.M"}}"#, "repository.remote-code"),
        ("tokenizer_config.json", template, "repository.template-escape"),
        ("any.json", br#"{"_target_": "os.system"}"#, "repository.target-dangerous"),
        ("chat_template.jinja", b"{{ lipsum.__globals__ }}", "repository.template-escape"),
        ("config.yaml", b"_target_: os.system\n", "repository.target-dangerous"),
        ("chat_template.txt", b"{{ lipsum.__globals__ }}", "repository.template-escape"),
        ("requirements-dev.txt", b"git+https://github.com/a/b\n", "repository.requirement"),
        ("model.safetensors.index.json", br#"{"weight_map": {"a": "../../x"}}"#, "repository.index-path"),
    ] {
        for archive in [zip(&[deflated(name, bytes)]), tar(&[(name, b'0', "", bytes)])] {
            let report = check_with("m.archive", &archive, &ValidateOptions::default());
            assert!(has(&report, id), "{name}: {report:?}");
        }
    }
    let fine =
        zip(&[member("config.json", br#"{"a": 1}"#), member("vocab.json", b"not JSON"), member("x.json", b"{]")]);
    assert!(check_with("m.zip", &fine, &ValidateOptions::default()).findings.is_empty());
}

#[test]
fn a_tar_archive_is_read_as_python_unpacks_it() {
    let attributes = |text: &str| format!("{} {text}\n", text.len() + 4).into_bytes();
    let path = attributes("path=../../etc/cron.d/xx");
    assert_eq!(found("a.tar", &tar(&[("g", b'g', "", &path), ("a", b'0', "", b"x")])), ["archive.path"]);
    let size = attributes("size=100000000000");
    assert_eq!(found("a.tar", &tar(&[("g", b'g', "", &size), ("a", b'0', "", b"x")])), ["archive.local"]);
    let sparse = attributes("GNU.sparse.major=1");
    let data = [&b"1\n0\n4\n"[..], &[0; 506], b"\x80\x04cos\nsystem\n."].concat();
    let report =
        check_with("a.nemo", &tar(&[("x", b'x', "", &sparse), ("w", b'0', "", &data)]), &ValidateOptions::default());
    assert!(has(&report, "archive.unsupported") && has(&report, "code.malicious-global"), "{report:?}");
    // Bytes after a NUL are no part of a number.
    let mut file = tar(&[("a", b'0', "", b""), ("b", b'0', "", PICKLE)]);
    file[124..136].copy_from_slice(b"000\x0000001000");
    file[148..156].copy_from_slice(b"        ");
    let sum: u32 = file[..512].iter().map(|byte| u32::from(*byte)).sum();
    file[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let report = check_with("a.tar", &file, &ValidateOptions::default());
    assert_eq!((report.findings.len(), report.files[0].members), (0, 2), "{report:?}");
}

#[test]
fn a_text_that_begins_as_a_pointer_is_what_it_is() {
    let yaml = b"version https://git-lfs: 1\nmodel:\n  _target_: os.system\n";
    let report = check_with("model_config.yaml", yaml, &ValidateOptions::default());
    assert!(has(&report, "repository.target-dangerous") && !has(&report, "format.lfs-pointer"), "{report:?}");
}

#[test]
fn a_virtual_dataset_of_another_file_and_links_that_cannot_be_read_are_told() {
    let file = |source: &str| {
        let list = [&b"\0\x01\0\0\0\0\0\0\0"[..], source.as_bytes(), b"\0/x\0"].concat();
        let object = [&b"\x01\0\x01\0\0\0\0\0"[..], &(list.len() as u64).to_le_bytes(), &list].concat();
        let heap = [b"GCOL\x01\0\0\0\0\x10\0\0\0\0\0\0".to_vec(), object, vec![0; 64]].concat();
        // The heap begins at byte 32; the layout is of version 4 and of the class of virtual datasets.
        [HDF5, &[0; 24], &heap, b"\x04\x03\x20\0\0\0\0\0\0\0\x01\0\0\0", &[0; 40]].concat()
    };
    assert_eq!(found("m.h5", &file("/etc/passwd")), ["hdf5.external"]);
    assert_eq!(found("m.h5", &file(".")), [""; 0], "the file itself");
    let heap = |filter: u8| [HDF5, &[0; 24], b"FRHP\0\x07\0", &[filter, 0], &[0; 40]].concat();
    assert_eq!(found("m.h5", &heap(30)), ["archive.unsupported"]);
    assert_eq!(found("m.h5", &heap(0)), [""; 0]);
}

/// The first bytes of programs of all systems: ELF, Windows, DOS, Mach-O of each width and byte order and of several processors, a class of Java, and
/// programs for several systems at once.
fn programs() -> Vec<Vec<u8>> {
    let windows = |start: &[u8]| {
        let mut program = start.to_vec();
        program.resize(0x3c, 0xff);
        program.extend(0x80u32.to_le_bytes());
        program.resize(0x80, 0);
        [&program[..], b"PE\0\0\x64\x86\x01\0"].concat()
    };
    let mut programs = vec![
        b"\x7fELF\x02\x01\x01\0\0".to_vec(),
        windows(b"MZ\x90\0\x03\0\0\0"),
        windows(b"MZ\0\0\0\0\0\0"),
        windows(b"MZ\xff\xff\xff\xff"),
        b"MZ\x10\0\x02\0\0\0\x04\0\0\0\xff\xff".to_vec(),
        b"MZqFpD='\n\0\0\x10\0\xf8\0\0".to_vec(),
        b"MZqFpD='\n#'\necho all of it is text\n".to_vec(),
        b"jartsr='\n#'\n".to_vec(),
    ];
    let magics: [&[u8]; 6] = [
        b"\xce\xfa\xed\xfe",
        b"\xcf\xfa\xed\xfe",
        b"\xfe\xed\xfa\xce",
        b"\xfe\xed\xfa\xcf",
        b"\xca\xfe\xba\xbe",
        b"\xca\xfe\xba\xbf",
    ];
    programs.extend(magics.map(|magic| [magic, b"\0\0\0\x34\x07\0\0\x01"].concat()));
    programs
}

#[test]
fn a_program_of_any_system_named_like_weights_is_malicious() {
    let scripts = [b"#!/bin/sh\nid\n".to_vec(), b"#!/usr/bin/env python3\nprint()\n".to_vec()];
    for program in programs().into_iter().chain(scripts) {
        for name in ["model.bin", "model.safetensors", "model.pth"] {
            let report = check_with(name, &program, &ValidateOptions::default());
            assert!(has(&report, "container.executable"), "{name}: {program:x?}: {:?}", rules(&report));
            assert_eq!(report.answer(), Verdict::Malicious);
        }
    }
    for text in ["MZ is the sign of a program", "MZ\n"] {
        assert!(
            !has(&check_with("a.bin", text.as_bytes(), &ValidateOptions::default()), "container.executable"),
            "{text}"
        );
    }
}

#[test]
fn compiled_code_in_an_archive_needs_trust_as_it_does_beside_weights() {
    let library = "lib/custom.so";
    for program in programs().into_iter().chain([b"\xa7\r\r\n\0\0\0\0".to_vec()]) {
        let inner = if program.starts_with(b"\xa7") { "lib/custom.pyc" } else { library };
        for name in ["m.pt2", "m.zip", "m.keras", "m.jar", "m.pt", "m.npz"] {
            let report = check_with(name, &zip(&[deflated(inner, &program)]), &ValidateOptions::default());
            assert!(has(&report, "repository.compiled-code"), "{name}: {program:x?}: {report:?}");
            assert_eq!(report.findings.iter().filter(|found| found.member.is_none()).count(), 0, "{name}");
            assert!(report.answer() >= Verdict::NeedsTrust);
        }
        let report = check_with("m.nemo", &tar(&[(inner, b'0', "", &program)]), &ValidateOptions::default());
        assert!(has(&report, "repository.compiled-code"), "{program:x?}");
    }
    assert!(!has(
        &check_with("m.zip", &zip(&[member("a.so", b"text")]), &ValidateOptions::default()),
        "repository.compiled-code"
    ));
}
