//! Metadata that are changed in a file leave its tensors what they are.

use std::fs;
use std::path::Path;

use max_weights::dtype::DType;
use max_weights::write::{
    DeclaredTensor, Edited, FileLayout, KeyChange, MetadataValue, SaveDestination, StoredElements, TensorFileWriter,
    edit_metadata, gguf_metadata,
};
use max_weights::{Encoding, open, uninterrupted};

/// A safetensors file of this header, and of bytes that count.
fn written(path: &Path, header: &str, bytes: u8) {
    let data: Vec<u8> = (0..bytes).collect();
    fs::write(path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()).unwrap();
}

fn set(key: &str, value: &str) -> Vec<KeyChange> {
    vec![(key.to_owned(), Some(MetadataValue::String(value.into())))]
}

#[test]
#[cfg_attr(windows, ignore = "a file that is open or mapped is not replaced there")]
fn a_tensor_of_a_dtype_that_is_not_known_here_stays_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let later = r#""later":{"dtype":"F9_\"E1","shape":[3],"data_offsets":[0,6]}"#;
    let known = r#""known":{"dtype":"U8","shape":[4],"data_offsets":[6,10]}"#;
    written(&path, &format!("{{{later},{known}}}"), 10);
    assert_eq!(edit_metadata(&path, &set("step", "100"), false, &uninterrupted).unwrap(), Edited::Rewritten);
    let bytes = fs::read(&path).unwrap();
    assert!(bytes.ends_with(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
    let header = String::from_utf8_lossy(&bytes[8..bytes.len() - 10]).into_owned();
    assert_eq!(header.trim_end(), format!(r#"{{"__metadata__":{{"step":"100"}},{later},{known}}}"#));
    assert_eq!(open(&path).unwrap().get("known").unwrap().bytes(), Some(&[6, 7, 8, 9][..]));
}

#[test]
#[cfg_attr(windows, ignore = "a file that is open or mapped is not replaced there")]
fn values_of_the_same_length_are_changed_in_place_and_the_same_ones_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    written(&path, r#"{"__metadata__":{"step":"100"},"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#, 2);
    let edit = |value| edit_metadata(&path, &set("step", value), false, &uninterrupted).unwrap();
    let len = fs::metadata(&path).unwrap().len();
    assert_eq!(edit("200"), Edited::InPlace);
    assert_eq!(edit("200"), Edited::Unchanged);
    assert_eq!(fs::metadata(&path).unwrap().len(), len);
    let file = open(&path).unwrap();
    assert_eq!(file.catalog().metadata().collect::<Vec<_>>(), [("step", "200")]);
    assert_eq!(file.get("w").unwrap().bytes(), Some(&[0, 1][..]));
}

#[test]
fn a_gguf_file_that_is_stored_anew_does_not_say_what_the_old_one_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    let metadata = [("general.file_type".to_owned(), MetadataValue::U32(15))];
    let tensor = DeclaredTensor { name: "w".into(), stored: StoredElements::Plain(DType::Float32), shape: vec![1] };
    let writer = TensorFileWriter::create(
        &path,
        FileLayout::gguf(vec![tensor], &metadata).unwrap(),
        false,
        &SaveDestination::default(),
        &uninterrupted,
    )
    .unwrap();
    writer.write("w", 0, &[0; 4]).unwrap();
    writer.finish(&uninterrupted).unwrap();
    let file = open(&path).unwrap();
    let message = |matrices| {
        let found = gguf_metadata(file.catalog(), matrices, Vec::new());
        found.into_iter().find(|(key, _)| key == "general.file_type").map(|(_, value)| value)
    };
    assert_eq!(message(None), Some(MetadataValue::U32(15)));
    assert_eq!(message(Some(StoredElements::Plain(DType::BFloat16))), Some(MetadataValue::U32(32)));
    assert_eq!(message(Some(StoredElements::Packed(Encoding::Q8_0))), Some(MetadataValue::U32(7)));
    assert_eq!(message(Some(StoredElements::Plain(DType::Float64))), None);
}
