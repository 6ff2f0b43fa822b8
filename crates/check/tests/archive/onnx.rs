//! ONNX models: external files, their tensors, and operators of other domains.

use std::path::{Path, PathBuf};

use max_weights::rules::Verdict;
use max_weights_check::{Depth, Level, Report, ValidateOptions};

use super::build::{check_paths, check_with, found, rules};

const NONE: [&str; 0] = [];

/// A field of protobuf that is bytes, a text or a message.
pub(crate) fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut len = bytes.len();
    while len >= 0x80 {
        field.push(len as u8 | 0x80);
        len >>= 7;
    }
    field.push(len as u8);
    field.extend(bytes);
    field
}

/// A model with one tensor in an external file, and an operator of a domain.
fn onnx(location: &str, domain: &str) -> Vec<u8> {
    let pair = [field(1, b"location"), field(2, location.as_bytes())].concat();
    let tensor = [field(8, b"w"), field(13, &pair)].concat();
    let node = [field(4, b"Relu"), field(7, domain.as_bytes())].concat();
    let graph = [field(1, &node), field(5, &tensor)].concat();
    [b"\x08\x08".as_slice(), &field(2, b"pytorch"), &field(7, &graph), &field(8, b"\x10\x11")].concat()
}

#[test]
fn an_onnx_model_is_known_by_its_bytes_and_its_paths_stay_in_its_folder() {
    let report = check_with("model", &onnx("model.data", ""), &ValidateOptions::default());
    assert_eq!((rules(&report), report.files[0].kind.as_str()), (vec![], "ONNX"));
    for location in ["../x", "/etc/passwd", "a/../../x", "https://host/x", "C:\\x"] {
        let report = check_with("m.onnx", &onnx(location, ""), &ValidateOptions::default());
        assert_eq!((rules(&report), report.answer()), (vec!["onnx.path"], Verdict::Malicious), "{location}");
    }
    assert_eq!(found("m.onnx", &onnx("m.data", "com.microsoft")), NONE);
    assert_eq!(found("m.onnx", &onnx("m.data", "my.operators")), ["onnx.domain"]);
    let whole = onnx("m.data", "");
    assert_eq!(found("m.onnx", &whole[..whole.len() - 2]), ["onnx.damaged"]);
}

#[test]
fn an_onnx_model_is_known_whatever_its_name_its_version_and_the_order_of_its_fields() {
    let whole = onnx("/etc/passwd", "");
    let (graph, rest) = (whole[2 + 9..].to_vec(), field(8, b"\x10\x11"));
    let graph = &graph[..graph.len() - rest.len()];
    let producer = field(2, &[b'p'; 700]);
    for (why, model) in [
        ("a long producer", [b"\x08\x08", &producer[..], graph, &rest].concat()),
        ("the first version", [b"\x08\x01", graph, &rest].concat()),
        ("no version", [graph, &rest].concat()),
        ("another order", [&rest[..], graph, &producer, b"\x08\x08"].concat()),
        ("a field of a later version", [b"\x08\x08", graph, &rest, b"\xf2\x03\x01x"].concat()),
    ] {
        let report = check_with("weights.dat", &model, &ValidateOptions::default());
        assert_eq!((rules(&report), report.files[0].kind.as_str()), (vec!["onnx.path"], "ONNX"), "{why}");
    }
}

#[cfg(unix)]
#[test]
fn links_in_place_of_the_data_of_an_onnx_model_need_trust() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let model = folder.path().join("m.onnx");
    std::fs::write(&model, onnx("m.data", "")).unwrap();
    let (data, target) = (folder.path().join("m.data"), other.path().join("target"));
    std::fs::write(&target, b"x").unwrap();
    let check = || rules(&check_paths(std::slice::from_ref(&model), &ValidateOptions::default()));
    assert_eq!(check(), NONE, "a file that is not there is for others to say");
    std::os::unix::fs::symlink(&target, &data).unwrap();
    assert_eq!(check(), ["onnx.link"]);
    std::fs::remove_file(&data).unwrap();
    std::fs::hard_link(&target, &data).unwrap();
    assert_eq!(check(), ["onnx.link"]);
    std::fs::remove_file(&target).unwrap();
    assert_eq!(check(), NONE);

    // As in the cache of a hub: both are links to blobs in one folder.
    let (snapshot, blobs) = (folder.path().join("snapshot"), folder.path().join("blobs"));
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join("1"), onnx("m.data", "")).unwrap();
    std::fs::write(blobs.join("2"), b"x").unwrap();
    std::os::unix::fs::symlink("../blobs/1", snapshot.join("m.onnx")).unwrap();
    std::os::unix::fs::symlink("../blobs/2", snapshot.join("m.data")).unwrap();
    assert_eq!(rules(&check_paths(&[snapshot.join("m.onnx")], &ValidateOptions::default())), NONE);
}

/// A tensor of two dimensions of float32, with what else it says.
fn tensor(dims: [u8; 2], more: &[u8]) -> Vec<u8> {
    [&[8, dims[0], 8, dims[1], 16, 1], field(8, b"w").as_slice(), more].concat()
}

fn with_tensor(tensor: &[u8]) -> Vec<u8> {
    [b"\x08\x08".as_slice(), &field(2, b"pytorch"), &field(7, &field(5, tensor))].concat()
}

/// A tensor of two by two with `length` bytes at `offset` of this file.
fn outside(location: &str, offset: &str, length: &str) -> Vec<u8> {
    let pairs = [("location", location), ("offset", offset), ("length", length)];
    let reported = pairs.iter().filter(|(_, value)| !value.is_empty());
    let reported: Vec<u8> = reported
        .flat_map(|(key, value)| field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat()))
        .collect();
    // The last field says that the values lie outside.
    with_tensor(&tensor([2, 2], &[reported.as_slice(), b"\x70\x01"].concat()))
}

fn write(folder: &Path, files: &[(&str, &[u8])]) -> PathBuf {
    for (name, bytes) in files {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    folder.join("m.onnx")
}

fn content() -> ValidateOptions {
    ValidateOptions { level: Level::Content, ..ValidateOptions::default() }
}

#[test]
fn the_values_of_an_onnx_model_beside_it_have_to_be_there() {
    let data = [1; 24];
    for (location, offset, length, expected) in [
        ("m.data", "", "", None),
        ("m.data", "8", "16", None),
        ("m.data", "8", "", None),
        ("none.data", "", "", Some("there is no such file")),
        ("", "", "", Some("none is named")),
        (".", "", "", Some("there is no such file")),
        ("m.data", "9", "16", Some("16 bytes from byte 9")),
        ("m.data", "25", "0", Some("from byte 25")),
        ("m.data", "18446744073709551615", "16", Some("from byte 18446744073709551615")),
        ("m.data", "0", "12", Some("are 12 bytes")),
        ("m.data", "-1", "16", Some("'-1'")),
        ("m.data", "0", "99999999999999999999", Some("not a valid offset and length")),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let model = outside(location, offset, length);
        let report =
            check_paths(&[write(folder.path(), &[("m.onnx", &model), ("m.data", &data)])], &ValidateOptions::default());
        let Some(words) = expected else {
            assert_eq!(rules(&report), NONE, "{location} {offset} {length}");
            continue;
        };
        assert_eq!((rules(&report), report.answer()), (vec!["onnx.external-data"], Verdict::Broken), "{words}");
        assert!(report.findings[0].message.contains(words), "{report:?}");
        assert_eq!(report.findings[0].tensor.as_deref(), Some("w"));
    }
}

#[test]
fn values_in_an_onnx_model_are_as_many_as_its_shape_needs() {
    let of = |dims: [u8; 2], bytes: usize| with_tensor(&tensor(dims, &field(9, &vec![1; bytes])));
    assert_eq!(found("m.onnx", &of([2, 2], 16)), NONE);
    assert_eq!(found("m.onnx", &of([0, 2], 0)), NONE);
    assert_eq!(found("m.onnx", &of([2, 2], 12)), ["onnx.damaged"]);
    // A dimension of -1.
    let negative = [b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x10\x01".as_slice(), &field(9, &[0; 4])].concat();
    assert_eq!(found("m.onnx", &with_tensor(&negative)), ["onnx.damaged"]);
    // The dimensions as a list.
    let listed = [field(1, &[2, 2]), vec![16, 1], field(9, &[0; 15])].concat();
    assert_eq!(found("m.onnx", &with_tensor(&listed)), ["onnx.damaged"]);
}

#[test]
fn the_values_of_an_onnx_model_are_looked_at_wherever_they_lie() {
    let floats = |values: [f32; 4]| values.map(f32::to_le_bytes).concat();
    let about = |report: &Report| (rules(report), report.files.iter().map(|file| file.depth).max());
    for (values, rule) in [
        ([1.0, f32::NAN, 2.0, 3.0], "values.nan"),
        ([1.0, f32::INFINITY, 2.0, 3.0], "values.infinity"),
        ([0.0; 4], "values.zero"),
        ([2.0; 4], "values.constant"),
    ] {
        let bytes = floats(values);
        let folder = tempfile::tempdir().unwrap();
        let model = write(
            folder.path(),
            &[("m.onnx", &outside("m.data", "4", "")), ("m.data", &[&[9; 4], &bytes[..]].concat())],
        );
        assert_eq!(about(&check_paths(&[model], &content())), (vec![rule], Some(Depth::Content)), "beside: {rule}");
        for number in [4, 9] {
            let model = with_tensor(&tensor([2, 2], &field(number, &bytes)));
            let report = check_with("m.onnx", &model, &content());
            assert_eq!(about(&report), (vec![rule], Some(Depth::Content)), "field {number}: {rule}");
            assert_eq!(report.statistics[0].shape, [2, 2]);
            assert_eq!(rules(&check_with("m.onnx", &model, &ValidateOptions::default())), NONE);
        }
    }
    // Numbers of variable length are not read, which is reported.
    let report = check_with("m.onnx", &with_tensor(&tensor([2, 2], &[40, 1])), &content());
    assert_eq!(report.files[0].depth, Depth::Structure);
    assert!(report.files[0].note.as_ref().is_some_and(|note| note.contains("1 arrays")), "{report:?}");
}
