//! Folders of torch.distributed.checkpoint whose items zstd compressed: what they unpack to is read, and streams that lie are named. That tensors are
//! what torch loads is tested from Python, on streams of zstd itself.

use std::path::Path;

use max_weights::checkpoint::{Checkpoint, OpenOptions, check_items};
use max_weights::error::Result;

use crate::distributed_files::{Folder, saved, text, two_ranks};

const RAW: u32 = 0;
const RLE: u32 = 1;

/// A frame of zstd of these blocks: kind, and bytes; or for one byte that is repeated, how often. `flags` and `window` are of its header.
fn frame(flags: u8, window: u8, blocks: &[(u32, u32, &[u8])]) -> Vec<u8> {
    let mut frame = [&b"\x28\xb5\x2f\xfd"[..], &[flags, window]].concat();
    for (number, (kind, size, bytes)) in blocks.iter().enumerate() {
        let header = u32::from(number + 1 == blocks.len()) | kind << 1 | size << 3;
        frame.extend(&header.to_le_bytes()[..3]);
        frame.extend(*bytes);
    }
    frame
}

/// A window of 8 MiB.
const USUAL: u8 = 13 << 3;

fn stored(bytes: &[u8]) -> Vec<u8> {
    frame(0, USUAL, &bytes.chunks(1000).map(|chunk| (RAW, chunk.len() as u32, chunk)).collect::<Vec<_>>())
}

/// Two ranks whose items are what `pack` makes of them.
fn packed(pack: impl Fn(&[u8]) -> Vec<u8>) -> Folder {
    let mut folder = Folder { transform: Some("stream.zstd/1".into()), ..two_ranks() };
    for rank in 0..2 {
        let (file, start, len) = folder.tensors[0].2[rank].item.clone().expect("an item");
        let of = folder.files.iter_mut().find(|(name, _)| *name == file).expect("its file");
        let (start, len) = (start as usize, len as usize);
        let bytes = pack(&of.1[start..start + len]);
        folder.tensors[0].2[rank].item = Some((file, 1, bytes.len() as i64));
        of.1 = [b"?".to_vec(), bytes].concat();
    }
    folder
}

fn values(path: &Path) -> Result<Vec<f32>> {
    let buffer = Checkpoint::open(&[path], &OpenOptions::default())?.get("w")?;
    let bytes = buffer.bytes().expect("contiguous");
    Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

#[test]
fn items_are_what_their_frames_unpack_to() {
    let excluded = [&b"\x53\x2a\x4d\x18\x03\0\0\0"[..], b"abc"].concat();
    let in_two = |bytes: &[u8]| {
        let (first, second) = bytes.split_at(bytes.len() / 3);
        [excluded.clone(), stored(first), excluded.clone(), stored(second), excluded.clone()].concat()
    };
    for folder in [packed(stored), packed(in_two)] {
        let (_kept, path) = folder.write();
        assert_eq!(values(&path).expect("read"), [0., 1., 2., 3., 4., 5., 6., 7.]);
        assert!(check_items(&[&path], &OpenOptions::default()).expect("checked").is_empty());
    }
}

/// The tensor is refused by its name, for this reason, and validation finds the same.
#[track_caller]
fn refused(pack: impl Fn(&[u8]) -> Vec<u8>, why: &str) {
    let (_kept, path) = packed(pack).write();
    let error = values(&path).expect_err("refused");
    let fault = error.diagnostic().unwrap_or_else(|| panic!("{error}"));
    assert_eq!((fault.rule.id, fault.tensor.as_deref()), ("distributed.item", Some("w")), "{fault}");
    // Of both, which are read at the same time.
    assert!(fault.file().ends_with("__0_0.distcp") || fault.file().ends_with("__1_0.distcp"), "{fault}");
    assert!(error.to_string().contains(why), "{error}");
    let found = check_items(&[&path], &OpenOptions::default()).expect("checked");
    assert!(found.iter().all(|finding| finding.rule.id == "distributed.item") && !found.is_empty(), "{found:?}");
}

#[test]
fn a_bomb_is_unpacked_as_far_as_its_piece_may_reach() {
    let block = (RLE, 128 << 10, &b"\0"[..]);
    refused(|_| frame(0, USUAL, &vec![block; 1 << 15]), "unpacks to more than the limit of 1048592 bytes");
    let many = frame(0, USUAL, &[block; 1]).repeat(1 << 12);
    refused(|_| many.clone(), "unpacks to more than");
}

#[test]
fn streams_that_are_damaged_or_no_streams_are_named() {
    let cut = |by: usize| move |bytes: &[u8]| stored(bytes)[..stored(bytes).len() - by].to_vec();
    refused(cut(1), "not a complete zstd frame");
    refused(cut(40), "not a complete zstd frame");
    refused(<[u8]>::to_vec, "not a complete zstd frame");
    refused(|_| Vec::from(*b"\x28\xb5\x2f\xfd"), "not a complete zstd frame");
    refused(|bytes| [stored(bytes), b"more".to_vec()].concat(), "not a complete zstd frame");
    // A window of 1 TiB.
    refused(|_| frame(0, 30 << 3, &[(RAW, 1, b"a")]), "not a complete zstd frame");
    // Of a checksum, all bytes are another.
    let with_checksum = |bytes: &[u8]| [frame(4, USUAL, &[(RAW, bytes.len() as u32, bytes)]), vec![0; 4]].concat();
    refused(with_checksum, "doesn't match checksum");
    refused(|_| stored(b"something else"), "not one that torch.save wrote");
    // A skippable frame longer than the file.
    refused(|_| Vec::from(*b"\x53\x2a\x4d\x18\xff\xff\xff\xff"), "not a complete zstd frame");
    refused(|_| Vec::from(*b"\x53\x2a\x4d\x18\x01\0\0\0a"), "not one that torch.save wrote");
}

#[test]
fn values_are_unpacked_and_bombs_among_them_are_noted() {
    let value = [b"\x80\x02".to_vec(), text("seven"), b".".to_vec()].concat();
    let value = stored(&saved(&value, &[]));
    let bomb = frame(0, USUAL, &[(RLE, 128 << 10, &b"\0"[..]); 64]);
    let mut folder = packed(stored);
    let mut file = Vec::new();
    for (name, bytes) in [("note", &value), ("bomb", &bomb)] {
        folder.values.push((name.into(), ("__2_0.distcp".into(), file.len() as i64, bytes.len() as i64)));
        file.extend(bytes);
    }
    folder.files.push(("__2_0.distcp".into(), file));
    let (_kept, path) = folder.write();
    let checkpoint = Checkpoint::open(&[&path], &OpenOptions::default()).expect("opened");
    let objects: Vec<_> = checkpoint.catalog().objects().map(|object| (object.name, object.source(99))).collect();
    assert_eq!(objects, [("note", "'seven'".to_owned())]);
    let findings = checkpoint.catalog().findings();
    assert_eq!(findings.iter().map(|finding| finding.rule.id).collect::<Vec<_>>(), ["distributed.values"]);
}
