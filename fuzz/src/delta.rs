//! Target `delta`: a delta of a base that is there, whose header, rows and records may lie.

use std::collections::BTreeMap;
use std::fs;

use max_weights::checkpoint::{Checkpoint, OpenOptions, OpenedDelta};
use max_weights::error::Error;

use super::folder::in_folder;
use super::layout::Layout;
use super::{check_message, memory};

/// The tensors of the base, by their names in it: dtype, shape, bytes of an element.
pub(super) const BASE: [(&str, &str, &[u64], u64); 4] =
    [("a", "F16", &[20, 15], 2), ("b", "U8", &[500], 1), ("c", "F32", &[40], 4), ("d", "I64", &[9], 8)];

pub(super) fn base() -> Vec<u8> {
    let (mut entries, mut at) = (Vec::new(), 0);
    for (name, dtype, shape, width) in BASE {
        let end = at + shape.iter().product::<u64>() * width;
        entries.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{at},{end}]}}"#));
        at = end;
    }
    Layout::File.input(format!("{{{}}}", entries.join(",")).as_bytes(), at, usize::MAX)
}

/// A base with a delta is refused with a message, or opened. If it opens, each tensor has the bytes of its shape, or is refused with a message,
/// and tensors that the delta does not name are unchanged.
pub fn check(input: &[u8]) {
    in_folder(|folder| {
        let (first, second) = (folder.join("base.safetensors"), folder.join("delta.safetensors"));
        fs::write(&first, base()).expect("room for the base");
        fs::write(&second, input).expect("room for the input");
        let alone = Checkpoint::open(&[&first], &OpenOptions::default()).expect("the base is whole");
        let before: BTreeMap<String, Vec<u8>> =
            bytes(&alone).into_iter().map(|(n, b)| (n, b.expect("whole"))).collect();
        memory::bounded(input.len(), || {
            let delta = OpenedDelta::open(&second, &OpenOptions::default());
            let opened = Checkpoint::open(&[&first, &second], &OpenOptions::default());
            match (&delta, &opened) {
                (Ok(delta), Ok(checkpoint)) => {
                    for (name, bytes) in bytes(checkpoint) {
                        let is_own =
                            delta.changed().any(|(own, _)| own == name) || delta.whole().any(|info| info.name == name);
                        match bytes {
                            Ok(bytes) if !is_own => assert_eq!(before.get(&name), Some(&bytes), "{name}"),
                            Ok(_) => {}
                            Err(error) => check_message(&error.to_string()),
                        }
                    }
                }
                // Both deltas, if there is another file of weights in addition to the base.
                (_, Err(error)) | (Err(error), Ok(_)) => check_message(&error.to_string()),
            }
        });
    });
}

pub(super) fn bytes(checkpoint: &Checkpoint) -> Vec<(String, Result<Vec<u8>, Error>)> {
    let table = checkpoint.catalog().table();
    let read = |number: usize| {
        let tensor = checkpoint.tensor(number)?;
        let bytes = tensor.bytes().expect("elements in C order").to_vec();
        let info = table.get(number);
        assert_eq!(bytes.len() as u64, info.bytes(), "{}", info.name);
        Ok(bytes)
    };
    (0..table.len()).map(|number| (table.name(number).to_owned(), read(number))).collect()
}
