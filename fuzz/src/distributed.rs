//! Target `distributed`: `.metadata` of torch.distributed.checkpoint, with the existing file of a rank.

use std::fs;

use max_weights::checkpoint::{Checkpoint, OpenOptions, check_items};
use max_weights::error::{Error, Result};

use super::folder::in_folder;
use super::{check_message, memory};

/// The file of a rank: what torch saved as the items of the committed inputs.
const RANK: &[u8] = include_bytes!("../items/__0_0.distcp");

/// A folder is refused with a rule, or opened. Each tensor is read whole, with as many bytes as its shape has, or refused with a message. Declared
/// sizes are compared with the file before they are used.
pub fn check(input: &[u8]) {
    in_folder(|folder| {
        let rank = folder.join("__0_0.distcp");
        if !rank.is_file() {
            fs::write(&rank, RANK).expect("room for the file of a rank");
        }
        let path = folder.join(".metadata");
        fs::write(&path, input).expect("room for the input");
        let options = OpenOptions::default();
        let opened = |strict: bool| {
            let options = options.clone().strict(strict);
            memory::bounded(input.len(), || Checkpoint::open(std::slice::from_ref(&path), &options))
        };
        let (strict, lenient) = (opened(true), opened(false));
        if let (Ok(strict), Ok(lenient)) = (&strict, &lenient) {
            assert_eq!(strict.catalog().table().len(), lenient.catalog().table().len());
        }
        assert!(strict.is_err() || lenient.is_ok(), "what opens when strict");
        check_error(&strict);
        check_error(&lenient);
        if let Ok(checkpoint) = lenient {
            check_tensors(&checkpoint, input.len());
        }
        match memory::bounded(input.len(), || check_items(std::slice::from_ref(&path), &options)) {
            Ok(findings) => findings.iter().for_each(|finding| check_message(&finding.to_string())),
            refused => check_error(&refused),
        }
    });
}

fn check_tensors(checkpoint: &Checkpoint, input: usize) {
    let table = checkpoint.catalog().table();
    let bytes: u64 = table.iter().map(|info| info.bytes()).sum();
    assert!(bytes <= RANK.len() as u64, "{bytes} bytes of tensors of a file of {}", RANK.len());
    for number in 0..table.len() {
        let read = memory::bounded(input + RANK.len(), || checkpoint.tensor(number));
        match &read {
            Ok(buffer) => assert_eq!(buffer.size() as u64, table.get(number).bytes()),
            Err(_) => check_error(&read),
        }
    }
    for object in checkpoint.catalog().objects() {
        check_message(&object.source(200));
    }
}

fn check_error<T>(outcome: &Result<T>) {
    let Err(error) = outcome else { return };
    check_message(&error.to_string());
    match error {
        Error::Format(fault) | Error::Unsupported(fault) => assert!(!fault.help.is_empty(), "{fault}"),
        Error::MissingFile { .. } | Error::Diagnostics(_) => {}
        other => panic!("{other}"),
    }
}
