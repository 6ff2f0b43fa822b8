//! NumPy's files, and what hides in files of weights.

use max_weights::rules::Verdict;
use max_weights_check::ValidateOptions;

use super::build::{PICKLE, check_with, found, member, rules, zip};

const NONE: [&str; 0] = [];

pub(crate) fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = b"\x93NUMPY\x01\0".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

pub(crate) fn array(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    npy(&format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"), data)
}

#[test]
fn arrays_as_numpy_writes_them_break_no_rule() {
    for (descr, shape, bytes) in [
        ("'<f4'", "(3, 2)", 24),
        ("'|b1'", "()", 1),
        ("'<U3'", "(2,)", 24),
        ("'<M8[ns]'", "(0, 5)", 0),
        ("[('a', '|i1'), ('', '|V7'), ('b', '<f8', (2, 2))]", "(2,)", 80),
        ("[(('title', 'name'), [('x', '<c16')])]", "(1,)", 16),
        ("'|u1'", "(3L,)", 3),
    ] {
        assert_eq!(found("a.npy", &array(descr, shape, &vec![1; bytes])), NONE, "{descr}");
    }
    let two = [array("'<f4'", "(1,)", &[1; 4]), array("'<i8'", "(1,)", &[1; 8])].concat();
    assert_eq!(found("two.npy", &two), NONE);
}

#[test]
fn a_header_that_is_no_plain_dict_is_broken() {
    for header in [
        "{'descr': '<f4', 'fortran_order': False, 'shape': __import__('os').system('true')}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "dict(descr='<f4')",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': 5, 'fortran_order': False, 'shape': (1,)}",
        "",
    ] {
        let report = check_with("a.npy", &npy(header, &[1; 4]), &ValidateOptions::default());
        let found = rules(&report);
        assert!(found.contains(&"numpy.header"), "{header}: {found:?}");
        assert_eq!(report.answer(), Verdict::Broken, "{header}");
    }
    assert!(found("a.npy", b"\x93NUMPY\x09\0\x01").contains(&"numpy.header"));
    assert!(found("a.npy", b"\x93NUMPY\x02\0\xff\xff\xff\xff{").contains(&"numpy.header"));
}

#[test]
fn objects_in_an_array_are_told_wherever_the_type_has_them() {
    for descr in ["'|O'", "[('a', '<f4'), ('b', '|O')]", "[('a', [('b', '|O', (2,))])]"] {
        assert_eq!(found("a.npy", &array(descr, "(1,)", PICKLE)), ["numpy.object"], "{descr}");
    }
    let inside = zip(&[member("a.npy", &array("'|O'", "(1,)", PICKLE))]);
    assert_eq!(found("a.npz", &inside), ["numpy.object"]);
}

#[test]
fn an_array_that_is_cut_or_followed_by_something_is_told() {
    assert_eq!(found("a.npy", &array("'<f4'", "(2,)", &[1; 7])), ["numpy.size"]);
    assert_eq!(found("a.npy", &array("'<f4'", "(4294967296, 4294967296)", &[1; 8])), ["numpy.header"]);
    assert_eq!(found("a.npy", &array("'<f4'", "(1,)", &[&[1; 4], PICKLE].concat())), ["archive.hidden"]);
    assert_eq!(found("a.npy", &array("'<f4'", "(1,)", &[1; 9])), ["archive.stray"]);
}

fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

const BAD_PICKLE: &[u8] = b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.";

#[test]
fn a_pickle_or_an_archive_in_a_safetensors_file_is_malicious() {
    let tensor = |dtype: &str, start: usize, end: usize| {
        format!("{{\"a\":{{\"dtype\":\"{dtype}\",\"shape\":[{}],\"data_offsets\":[{start},{end}]}}}}", end - start)
    };
    let len = BAD_PICKLE.len();
    let as_tensor = safetensors(&tensor("U8", 0, len), BAD_PICKLE);
    assert_eq!(found("m.safetensors", &as_tensor), ["container.pickle"]);
    let in_hole = safetensors(&tensor("F32", len, len + 4), &[BAD_PICKLE, &[1; 4]].concat());
    assert_eq!(found("m.safetensors", &in_hole), ["container.pickle"]);
    let behind = safetensors(&tensor("F32", 0, 4), &[&[1; 4], BAD_PICKLE].concat());
    assert_eq!(found("m.safetensors", &behind), ["container.pickle"]);
    let fine = safetensors(&tensor("U8", 0, 8), &[0x80, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(found("m.safetensors", &fine), NONE);
}

#[test]
fn a_file_that_is_a_zip_archive_too_is_malicious() {
    let archive = zip(&[member("a/data.pkl", PICKLE)]);
    let header = format!("{{\"a\":{{\"dtype\":\"U8\",\"shape\":[{0}],\"data_offsets\":[0,{0}]}}}}", archive.len());
    let both = safetensors(&header, &archive);
    let report = check_with("m.safetensors", &both, &ValidateOptions::default());
    assert!(rules(&report).contains(&"container.polyglot"), "{report:?}");
    assert_eq!(report.answer(), Verdict::Malicious);
    let gguf = [b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".as_slice(), &archive].concat();
    assert!(found("m.gguf", &gguf).contains(&"container.polyglot"));
    // An archive within a tar archive ends near its end, and is a member.
    assert_eq!(found("m.nemo", &super::build::tar(&[("m.pt", b'0', "", &archive)])), NONE);
}

#[test]
fn code_in_the_metadata_of_weights_is_told() {
    let header = |value: &str| format!("{{\"__metadata__\":{{\"note\":\"{value}\"}}}}");
    assert_eq!(
        found("m.safetensors", &safetensors(&header("__import__('os').system('x')"), b"")),
        ["container.metadata"]
    );
    let fine = "{'ss_network_module': 'networks.lora', 'eval': true, 'os': 'linux'}";
    assert_eq!(found("m.safetensors", &safetensors(&header(fine), b"")), NONE);
}

#[test]
fn a_pickle_in_base64_in_the_metadata_is_found() {
    let header = |value: &str| format!("{{\"__metadata__\":{{\"note\":\"{value}\"}}}}");
    // BAD_PICKLE.
    let text = "gASMCGJ1aWx0aW5zjARldmFsk4wBMYVSLg==";
    let report = check_with("m.safetensors", &safetensors(&header(text), b""), &ValidateOptions::default());
    assert!(rules(&report).contains(&"container.metadata"), "{report:?}");
    assert_eq!(report.answer(), Verdict::Malicious);
    let digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    for fine in [digest, "bm9ib2R5IGNhbGxzIHRoaXMgYSBwaWNrbGUu", "networks.lora", "pt"] {
        assert_eq!(found("m.safetensors", &safetensors(&header(fine), b"")), NONE, "{fine}");
    }
}

#[test]
fn a_pickle_between_or_behind_the_tensors_of_gguf_is_found() {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    // One dimension of 8 elements of float32.
    let tensor = |name: &str, at: u64| {
        [text(name), b"\x01\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0".to_vec(), at.to_le_bytes().to_vec()].concat()
    };
    let gguf = |second: u64, data: &[u8]| {
        let key = [text("general.architecture"), 8u32.to_le_bytes().to_vec(), text("llama")].concat();
        let counts = [2u64.to_le_bytes(), 1u64.to_le_bytes()].concat();
        let mut bytes = [b"GGUF\x03\0\0\0".to_vec(), counts, key, tensor("a", 0), tensor("b", second)].concat();
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        [bytes, data.to_vec()].concat()
    };
    let mut hole = BAD_PICKLE.to_vec();
    hole.resize(32, 0);
    for (second, data) in [(64, [&[1; 32], hole.as_slice(), &[1; 32]].concat()), (32, [&[1; 64], BAD_PICKLE].concat())]
    {
        let report = check_with("m.gguf", &gguf(second, &data), &ValidateOptions::default());
        assert!(rules(&report).contains(&"container.pickle"), "{report:?}");
        assert_eq!(report.answer(), Verdict::Malicious);
    }
    assert!(!found("m.gguf", &gguf(32, &[1; 64])).contains(&"container.pickle"));
}

#[test]
fn several_types_in_one_text_are_no_plain_type() {
    // The shape covers the pickle that numpy would load.
    let report = check_with("a.npy", &array("'f4,O'", "(1,)", PICKLE), &ValidateOptions::default());
    assert_eq!(rules(&report), ["numpy.object"]);
    assert!(found("a.npy", &array("'f4,i4'", "(1,)", &[1; 8])).contains(&"numpy.header"));
}

#[test]
fn weights_that_are_a_pickle_from_their_first_byte_are_malicious() {
    // The length of the header begins with the byte that begins a line of text, and the line ends in the first tensor.
    let data = b"\n0cposix\nsystem\n(S'true'\ntR.\0\0\0";
    let mut header = format!("{{\"a\":{{\"dtype\":\"U8\",\"shape\":[{0}],\"data_offsets\":[0,{0}]}}}}", data.len());
    while header.len() % 256 != usize::from(b'V') {
        header.push(' ');
    }
    let picture = [b"GIF89a\x01\0\x01V\0\0;\n0", &data[2..]].concat();
    for (name, bytes) in [("pytorch_model.bin", safetensors(&header, data)), ("model.bin", picture)] {
        let report = check_with(name, &bytes, &ValidateOptions::default());
        assert!(rules(&report).contains(&"container.pickle"), "{name}: {report:?}");
        assert!(report.findings.iter().any(|finding| finding.rule.id == "code.malicious-global"), "{name}");
    }
}
