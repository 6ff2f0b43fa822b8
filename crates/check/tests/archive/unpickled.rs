//! Pickles among the values of other formats, which a library unpickles as it reads them: in HDF5 files and in tables of Arrow.

use std::fmt::Write as _;

use max_weights::rules::Verdict;
use max_weights_check::{Depth, Report, ValidateOptions};

use super::build::check_with;

const HDF5: &[u8] = b"\x89HDF\r\n\x1a\n";
/// `os.system` as protocol 0 and as protocol 4 write it, as a module that no name of Python's is, and with letters that are escapes.
const EVIL: [&[u8]; 4] = [
    b"cposix\nsystem\np0\n(Vtrue\np1\ntp2\nRp3\n.",
    b"\x80\x04\x95\x1f\0\0\0\0\0\0\0\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",
    b"(S'true'\nios\nsystem\n.",
    b"V\\u006fs\nVsystem\n\x93Vtrue\n\x85R.",
];
/// Lists and numbers, and an array of NumPy.
const PLAIN: [&[u8]; 3] =
    [b"(lp0\nI1\naI2\na.", b"\x80\x04]\x94(K\x01K\x02e.", b"cnumpy\ndtype\np0\n(Vf4\np1\nI00\nI01\ntp2\nRp3\n."];

fn report(name: &str, bytes: &[u8]) -> Report {
    check_with(name, bytes, &ValidateOptions::default())
}

/// An attribute, as each version of the format writes it.
fn attribute(version: u8, class: u8, value: &[u8]) -> Vec<u8> {
    let pad = |mut part: Vec<u8>| {
        if version == 1 {
            part.resize(part.len().next_multiple_of(8), 0);
        }
        part
    };
    let of_type = [&[0x10 | class, 1, 0, 0][..], &(value.len() as u32).to_le_bytes()].concat();
    let scalar = if version == 1 { vec![1, 0, 0, 0, 0, 0, 0, 0] } else { vec![2, 0, 0, 0] };
    let mut bytes = vec![version, 0, 5, 0, of_type.len() as u8, 0, scalar.len() as u8, 0];
    bytes.extend(std::iter::repeat_n(0, usize::from(version == 3)));
    [bytes, pad(b"evil\0".to_vec()), pad(of_type), pad(scalar), value.to_vec(), vec![0; 9]].concat()
}

/// An object of a heap, where arrays of variable length keep their rows.
fn heap(value: &[u8]) -> Vec<u8> {
    let object = |bytes: &[u8]| {
        let mut object = [&b"\x01\0\x01\0\0\0\0\0"[..], &(bytes.len() as u64).to_le_bytes(), bytes].concat();
        object.resize(object.len().next_multiple_of(8), 0);
        object
    };
    [b"GCOL\x01\0\0\0\0\x10\0\0\0\0\0\0".to_vec(), object(b"first"), object(value), vec![0; 64]].concat()
}

fn hdf5(part: &[u8]) -> Vec<u8> {
    [HDF5, &[0; 100], part, &[0; 100]].concat()
}

#[test]
fn a_pickle_in_an_attribute_of_hdf5_is_judged_as_any_pickle_is() {
    for version in 1..=3 {
        for class in [3, 5] {
            for (at, evil) in EVIL.iter().enumerate() {
                let report = report("m.h5", &hdf5(&attribute(version, class, evil)));
                assert_eq!(report.answer(), Verdict::Malicious, "{version} {class} {at}: {report:?}");
                let found = &report.findings[0];
                assert_eq!(found.member.as_deref(), Some("attribute 'evil'"), "{found:?}");
                let both: Vec<_> = report.findings.iter().map(|found| (found.rule.id, found.offset)).collect();
                assert!(both.iter().all(|one| both.iter().filter(|other| *other == one).count() == 1), "{both:?}");
            }
            for plain in PLAIN {
                let report = report("m.h5", &hdf5(&attribute(version, class, plain)));
                assert_eq!((report.answer(), report.findings.len()), (Verdict::Clean, 0), "{report:?}");
            }
        }
    }
    let unknown = report("m.h5", &hdf5(&attribute(1, 3, b"cmine\nThing\n)R.")));
    assert_eq!(unknown.answer(), Verdict::NeedsTrust, "{unknown:?}");
}

#[test]
fn a_pickle_in_a_row_of_hdf5_is_judged_as_any_pickle_is() {
    for evil in EVIL {
        // A row may continue after its pickle, which readers ignore.
        for row in [evil.to_vec(), [evil, b"more"].concat()] {
            let report = report("m.h5", &hdf5(&heap(&row)));
            assert_eq!(report.answer(), Verdict::Malicious, "{report:?}");
            assert!(report.findings.iter().all(|found| found.member.as_deref() == Some("object 1 of the heap at 108")));
        }
    }
    for plain in PLAIN {
        assert_eq!(report("m.h5", &hdf5(&heap(plain))).answer(), Verdict::Clean);
    }
}

#[test]
fn a_pickle_anywhere_else_in_hdf5_is_found() {
    for evil in [EVIL[0], EVIL[1]] {
        for before in [0, 1, 70_000, (1 << 20) - 30] {
            let file = [HDF5, &vec![0x11; before], evil, &[0x11; 50]].concat();
            assert_eq!(report("m.h5", &file).answer(), Verdict::Malicious, "{before}");
        }
    }
    // In a member of an archive, and where HDF5 begins behind other bytes.
    let inner = hdf5(&attribute(1, 3, EVIL[0]));
    let zip = super::build::zip(&[super::build::member("model.weights.h5", &inner)]);
    assert_eq!(report("m.keras", &zip).answer(), Verdict::Malicious);
    let behind = [&[b'x'; 512][..], &inner].concat();
    assert_eq!(report("m.dat", &behind).answer(), Verdict::Malicious);
}

#[test]
fn texts_and_numbers_in_hdf5_are_no_pickles() {
    let mut words = String::new();
    for at in 0..20_000 {
        writeln!(words, "{}", ["count", "item", "system", "class", "import", "vector."][at % 6]).expect("a text");
    }
    for text in [
        "cats\nand\ndogs.",
        "It is.\nSo\nit\nis.",
        "import os\nos\nsystem\n",
        "GROUP",
        "0.",
        "Copyright\nincluding\nwithout\nlimitation.",
        words.as_str(),
    ] {
        let short = text.as_bytes().get(..60_000).unwrap_or(text.as_bytes());
        for part in [attribute(1, 3, short), heap(text.as_bytes()), text.as_bytes().to_vec()] {
            let report = report("m.h5", &hdf5(&part));
            assert!(report.findings.is_empty(), "{text:.20}: {report:?}");
        }
    }
    let mut state = 1_u64;
    let random: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(4 << 20)
    .collect();
    let report = report("m.h5", &hdf5(&random));
    assert!(report.findings.is_empty(), "{report:?}");
}

#[test]
fn an_attribute_that_lies_about_its_lengths_is_no_error() {
    let good = attribute(1, 3, EVIL[0]);
    for at in 0..32 {
        for byte in [0, 1, 7, 0x7f, 0xff] {
            let mut file = good.clone();
            file[at] = byte;
            // The pickle is found at any declared position of the value.
            assert_eq!(report("m.h5", &hdf5(&file)).answer(), Verdict::Malicious, "{at} {byte}");
        }
    }
    let mut long = heap(EVIL[0]);
    long[8..16].fill(0xff);
    long[24..32].fill(0xff);
    assert_eq!(report("m.h5", &hdf5(&long)).answer(), Verdict::Malicious);
}

/// A schema of Arrow with a type of this name, described by these bytes.
fn schema(name: &str, description: &[u8]) -> Vec<u8> {
    let text = |text: &[u8]| [&(text.len() as u32).to_le_bytes()[..], text, b"\0"].concat();
    // A message: the offset of its table, the length of the list of its fields, their offsets; the version, and the kind.
    let message = b"\x10\0\0\0\0\0\x0a\0\x0c\0\x06\0\x05\0\x08\0\x0a\0\0\0\0\x01\x04\0\x0c\0\0\0";
    let pairs =
        [text(name.as_bytes()), text(b"ARROW:extension:name"), text(description), text(b"ARROW:extension:metadata")]
            .concat();
    let mut body = [&message[..], &pairs].concat();
    body.resize(body.len().next_multiple_of(8), 0);
    [&b"\xff\xff\xff\xff"[..], &(body.len() as u32).to_le_bytes(), &body].concat()
}

fn base64(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bytes
        .chunks(3)
        .flat_map(|three| {
            let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
            (0..=three.len()).map(move |at| DIGITS[(bits >> (18 - 6 * at) & 63) as usize])
        })
        .collect()
}

/// The same schema as a file, a stream, and in a Parquet file.
fn tables(name: &str, description: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let schema = schema(name, description);
    let value = base64(&schema);
    let parquet =
        [b"PAR1\x15\x04\x18\x0cARROW:schema\x18", &[value.len() as u8 | 0x80, 1][..], &value, b"\0\x20\0\0PAR1"];
    vec![
        ("Arrow", [b"ARROW1\0\0", &schema[..], b"\0\0\0\0ARROW1"].concat()),
        ("Arrow", [&schema[..], &[0; 64]].concat()),
        ("Parquet", parquet.concat()),
    ]
}

#[test]
fn a_type_of_arrow_that_is_a_pickle_is_found_in_each_form_of_a_table() {
    for evil in [EVIL[0], EVIL[1], EVIL[3]] {
        for (kind, file) in tables("arrow.py_extension_type", evil) {
            let report = report("table.dat", &file);
            let rules: Vec<_> = report.findings.iter().map(|found| found.rule.id).collect();
            assert_eq!((report.answer(), report.files[0].kind.as_str()), (Verdict::Malicious, kind), "{rules:?}");
            assert!(rules.contains(&"arrow.pickle"), "{rules:?}");
        }
    }
    // What it does shows only when it is read.
    for (_, file) in tables("arrow.py_extension_type", b"no pickle") {
        assert_eq!(report("table.dat", &file).answer(), Verdict::NeedsTrust);
    }
    for (kind, file) in tables("arrow.uuid", b"") {
        let report = report("table.dat", &file);
        let file = &report.files[0];
        assert_eq!((file.depth, file.kind.as_str()), (Depth::Recognised, kind), "{report:?}");
        assert!(report.findings.is_empty(), "{report:?}");
    }
    assert_eq!(report("a.feather", b"FEA1\0\0\0\0\x08\0\0\0FEA1").files[0].kind, "Feather");
}

#[test]
fn a_table_named_like_weights_is_no_weights() {
    for (_, file) in tables("arrow.uuid", b"") {
        let rules: Vec<_> = report("model.safetensors", &file).findings.iter().map(|found| found.rule.id).collect();
        assert_eq!(rules, ["format.stranger"]);
    }
}
