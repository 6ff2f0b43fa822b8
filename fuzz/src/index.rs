//! Target `index`: the index of a sharded checkpoint, against a plain reader of JSON, and against two shards that are there.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;

use max_weights::checkpoint::{Checkpoint, OpenOptions};
use max_weights::error::{Diagnostic, Error, Result};
use max_weights::format::HeaderOptions;
use max_weights::format::index::{MAX_SHARDS, ShardIndex, parse};
use serde_json::Value;

use super::folder::in_folder;
use super::layout::Layout;
use super::{check_message, memory};

/// The shards that are there, with the names of their tensors, each of one byte.
pub const SHARDS: [(&str, [&str; 2]); 2] =
    [("a.safetensors", ["w", "x.weight"]), ("b.safetensors", ["x.weight", "y.0.bias"])];

/// An index that is read names each tensor once and each shard by a name that stays below its folder, and agrees with a plain JSON
/// reader. Opened, it gives exactly the tensors that it names.
pub fn check(input: &[u8]) {
    let read = memory::bounded(input.len(), || parse(input, &HeaderOptions::default()));
    match &read {
        Ok(index) => check_index(index, input),
        Err(error) => {
            let fault = error.diagnostic().expect("a fault");
            assert!(fault.rule.id.starts_with("index.") && !fault.help.is_empty(), "{fault}");
            assert!(fault.offset.is_none_or(|offset| offset <= input.len() as u64), "{fault}");
            check_message(&fault.to_string());
        }
    }
    in_folder(|folder| {
        let path = folder.join("model.safetensors.index.json");
        write_shards(folder);
        fs::write(&path, input).expect("room for the input");
        let [strict, lenient] = [true, false].map(|strict| {
            let options = OpenOptions::default().strict(strict);
            let opened = memory::bounded(input.len(), || Checkpoint::open(std::slice::from_ref(&path), &options));
            check_opened(&opened, read.as_ref().ok(), folder);
            opened
        });
        if let Ok(strict) = strict {
            let lenient = lenient.expect("what opens when strict");
            assert_eq!(strict.catalog().table().len(), lenient.catalog().table().len());
            assert!(strict.catalog().findings().is_empty(), "{:?}", strict.catalog().findings());
        }
    });
}

fn write_shards(folder: &Path) {
    for (shard, names) in SHARDS {
        let path = folder.join(shard);
        if !path.is_file() {
            let entry =
                |(i, name)| format!("\"{name}\":{{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[{i},{}]}}", i + 1);
            let entries: Vec<String> = names.iter().enumerate().map(entry).collect();
            let header = format!("{{{}}}", entries.join(","));
            fs::write(path, Layout::File.input(header.as_bytes(), 2, usize::MAX)).expect("room for a shard");
        }
    }
}

fn check_index(index: &ShardIndex, input: &[u8]) {
    let plain: Value = serde_json::from_slice(input).expect("a plain reader reads it too");
    let map = plain["weight_map"].as_object().expect("the weight_map of an index");
    let expected: BTreeMap<&str, &str> =
        map.iter().map(|(name, shard)| (name.as_str(), shard.as_str().expect("a shard's name"))).collect();
    let found: BTreeMap<&str, &str> =
        index.iter().map(|(name, shard)| (name, index.shards[shard as usize].as_str())).collect();
    assert_eq!((index.len(), &found), (found.len(), &expected));
    for (number, (name, shard)) in index.iter().enumerate() {
        assert_eq!(index.find(name), Some((number, shard)));
    }
    let shards: HashSet<&str> = index.shards.iter().map(String::as_str).collect();
    assert_eq!(shards.len(), index.shards.len(), "every shard once");
    assert!(shards.len() <= MAX_SHARDS);
    for shard in shards {
        let plain = !shard.contains(['\\', '\0']) && shard.as_bytes().get(1) != Some(&b':');
        let parts = shard.split('/').all(|part| !["", ".", ".."].contains(&part));
        assert!(plain && parts && !shard.contains(char::is_control), "{shard:?} leads out of the folder");
    }
    let size = &plain["metadata"]["total_size"];
    let whole = size.as_u64().or_else(|| size.as_f64().map(|size| size as u64));
    assert_eq!(index.total_size, whole);
}

fn check_opened(opened: &Result<Checkpoint>, index: Option<&ShardIndex>, folder: &Path) {
    match opened {
        Ok(checkpoint) => {
            let index = index.expect("an index that is read");
            let catalog = checkpoint.catalog();
            for (number, info) in catalog.table().iter().enumerate() {
                assert!(index.find(info.name).is_some(), "{} is not in the index", info.name);
                assert_eq!(checkpoint.tensor(number).expect("memory").size(), 1);
            }
            for finding in catalog.findings() {
                check_place(finding, folder);
            }
        }
        Err(Error::Io { .. }) => {} // a name that the system refuses, such as one of a file as a folder
        Err(error) => check_place(error.diagnostic().expect("a fault"), folder),
    }
    if let Err(error) = opened {
        check_message(&error.to_string());
    }
}

fn check_place(fault: &Diagnostic, folder: &Path) {
    let path = fault.path.as_deref();
    let counted = fault.message.ends_with("more of this kind");
    assert!(counted || path.is_some_and(|path| path.starts_with(folder)), "{fault}");
    assert!(counted || !fault.help.is_empty(), "{fault}");
    check_message(&fault.to_string());
}
