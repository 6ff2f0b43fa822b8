//! Folders of torch.distributed.checkpoint: pieces become tensors, and each way in which a folder can lie breaks the rule of its name. That
//! tensors are what torch loads is tested from Python, on checkpoints that torch made.

use std::fs;
use std::path::Path;

use max_weights::buffer::IndexPart;
use max_weights::checkpoint::{Checkpoint, OpenOptions, check_items};
use max_weights::error::{Error, Result};

use crate::distributed_files::{Chunk, Folder, item, object, saved, text, two_ranks};

fn open(path: &Path, strict: bool) -> Result<Checkpoint> {
    Checkpoint::open(&[path], &OpenOptions::default().strict(strict))
}

fn values(checkpoint: &Checkpoint, name: &str) -> Result<Vec<f32>> {
    let buffer = checkpoint.get(name)?;
    let bytes = buffer.bytes().expect("contiguous");
    Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// The folder is refused by this rule, of the file `.metadata` or another; where more than the tensor is whole it is opened without it.
#[track_caller]
fn breaks(folder: &Folder, rule: &str) -> String {
    let (_kept, path) = folder.write();
    let error = open(&path, true).expect_err("refused");
    let fault = error.diagnostic().unwrap_or_else(|| panic!("{error}"));
    assert_eq!(fault.rule.id, rule, "{fault}");
    let found = check_items(&[&path], &OpenOptions::default());
    match found {
        Ok(findings) => assert!(findings.iter().any(|finding| finding.rule.id == rule), "{findings:?}"),
        Err(error) => assert_eq!(error.diagnostic().expect("a fault").rule.id, rule),
    }
    error.to_string()
}

#[test]
fn pieces_are_put_together_and_a_part_is_read_of_its_piece_alone() {
    let (_kept, path) = two_ranks().write();
    let checkpoint = open(&path, true).unwrap();
    assert_eq!(values(&checkpoint, "w").unwrap(), [0., 1., 2., 3., 4., 5., 6., 7.]);
    // What the other rank saved need not be there for this.
    fs::remove_file(path.join("__1_0.distcp")).unwrap();
    let checkpoint = open(&path, false).unwrap();
    assert_eq!(checkpoint.catalog().findings()[0].rule.id, "distributed.missing-file");
    let rows = IndexPart::Slice { start: Some(0), stop: Some(2), step: 1 };
    let part = checkpoint.part(0, &[rows]).unwrap();
    assert_eq!(part.shape(), [2, 2]);
    assert!(matches!(values(&checkpoint, "w"), Err(Error::MissingFile { .. })));
}

#[test]
fn a_piece_that_is_not_in_c_order_in_its_file_is_put_in_order() {
    let mut folder = two_ranks();
    let turned = item(&[0., 2., 1., 3.], &[2, 2], &[1, 2]);
    folder.tensors[0].2[0].item = Some(("__0_0.distcp".into(), 0, turned.len() as i64));
    folder.files[0].1 = turned;
    let (_kept, path) = folder.write();
    assert_eq!(values(&open(&path, true).unwrap(), "w").unwrap(), [0., 1., 2., 3., 4., 5., 6., 7.]);
}

#[test]
fn columns_boxes_scalars_and_empty_chunks() {
    let mut folder = Folder::default();
    let mut file = Vec::new();
    let mut add = |offsets: &[i64], sizes: &[i64], values: &[f32], strides: &[i64]| {
        let item = item(values, sizes, strides);
        let place = Some(("__0_0.distcp".to_owned(), file.len() as i64, item.len() as i64));
        file.extend(item);
        Chunk { offsets: offsets.to_vec(), sizes: sizes.to_vec(), item: place }
    };
    let columns =
        vec![add(&[0, 0], &[3, 1], &[0., 3., 6.], &[1, 1]), add(&[0, 1], &[3, 2], &[1., 2., 4., 5., 7., 8.], &[2, 1])];
    let boxes = vec![
        add(&[1, 0], &[1, 1], &[2.], &[9, 9]),
        add(&[0, 0], &[1, 2], &[0., 1.], &[2, 1]),
        add(&[1, 1], &[1, 1], &[3.], &[1, 1]),
    ];
    let scalar = vec![add(&[], &[], &[7.], &[])];
    let none = Chunk { offsets: vec![0, 3], sizes: vec![3, 0], item: None };
    folder.tensors.push(("columns".into(), vec![3, 3], [columns, vec![none]].concat()));
    folder.tensors.push(("boxes".into(), vec![2, 2], boxes));
    folder.tensors.push(("scalar".into(), vec![], scalar));
    folder.tensors.push(("empty".into(), vec![0, 4], vec![]));
    folder.files.push(("__0_0.distcp".into(), file));
    let (_kept, path) = folder.write();
    let checkpoint = open(&path, true).unwrap();
    assert_eq!(values(&checkpoint, "columns").unwrap(), (0..9).map(|n| n as f32).collect::<Vec<_>>());
    assert_eq!(values(&checkpoint, "boxes").unwrap(), [0., 1., 2., 3.]);
    assert_eq!(values(&checkpoint, "scalar").unwrap(), [7.]);
    assert_eq!(values(&checkpoint, "empty").unwrap(), [0.; 0]);
    let column = [IndexPart::Slice { start: None, stop: None, step: 1 }, IndexPart::At(2)];
    let part = checkpoint.part(0, &column).unwrap();
    assert_eq!(part.bytes().unwrap(), [2_f32, 5., 8.].map(f32::to_le_bytes).concat());
}

#[test]
fn a_missing_file_of_a_rank() {
    let mut folder = two_ranks();
    folder.files.remove(1);
    assert!(breaks(&folder, "distributed.missing-file").contains(".metadata puts 1 item into it"));
}

#[test]
fn pieces_that_overlap() {
    let mut folder = two_ranks();
    folder.tensors[0].2[1].offsets = vec![1, 0];
    assert!(breaks(&folder, "distributed.overlap").contains("begin at [0, 0] and at [1, 0]"));
}

#[test]
fn elements_that_no_piece_has() {
    let mut folder = two_ranks();
    folder.tensors[0].2.remove(0);
    assert!(breaks(&folder, "distributed.hole").contains("have 4 of the 8 elements"));
}

#[test]
fn a_piece_that_reaches_outside_its_tensor() {
    let mut folder = two_ranks();
    folder.tensors[0].2[1].offsets = vec![3, 0];
    breaks(&folder, "distributed.shape");
    folder.tensors[0].2[1].offsets = vec![i64::MAX, 0];
    breaks(&folder, "distributed.shape");
    folder.tensors[0].1 = vec![i64::MAX, i64::MAX];
    breaks(&folder, "distributed.shape");
    folder.tensors[0].1 = vec![4];
    breaks(&folder, "distributed.shape");
}

#[test]
fn sizes_that_lie() {
    let mut folder = two_ranks();
    folder.tensors[0].2[0].item = Some(("__0_0.distcp".into(), 7, 15));
    assert!(breaks(&folder, "distributed.size").contains("takes 16 bytes, but the item"));
}

#[test]
fn an_item_outside_its_file() {
    let mut folder = two_ranks();
    let end = folder.files[0].1.len() as i64;
    folder.tensors[0].2[0].item = Some(("__0_0.distcp".into(), 8, end - 7));
    breaks(&folder, "distributed.outside");
    // Opened all the same, only this piece cannot be read.
    let (_kept, path) = folder.write();
    let error = values(&open(&path, false).unwrap(), "w").expect_err("refused");
    assert_eq!(error.diagnostic().unwrap().rule.id, "distributed.outside");
    folder.files[0].1.truncate(20);
    folder.tensors[0].2[0].item = Some(("__0_0.distcp".into(), 7, end - 7));
    breaks(&folder, "distributed.outside");
}

#[test]
fn a_piece_of_which_it_is_not_said_where_it_is() {
    let mut folder = two_ranks();
    folder.tensors[0].2[0].item = None;
    breaks(&folder, "distributed.missing-item");
}

#[test]
fn a_name_that_is_there_twice_hides_no_tensor() {
    // One byte of a name makes it that of its neighbour, whose entry replaces the one before it, as in Python.
    let mut folder = two_ranks();
    let other = (String::from("v"), folder.tensors[0].1.clone(), folder.tensors[0].2.clone());
    folder.tensors.push(other);
    folder.files.push(("__2_0.distcp".into(), folder.files[0].1.clone()));
    folder.files.push(("__3_0.distcp".into(), folder.files[1].1.clone()));
    for chunk in &mut folder.tensors[1].2 {
        let (file, ..) = chunk.item.as_mut().unwrap();
        *file = if file.starts_with("__0") { "__2_0.distcp".into() } else { "__3_0.distcp".into() };
    }
    let (_kept, path) = folder.write();
    assert_eq!(open(&path, true).unwrap().catalog().table().len(), 2);
    let metadata = folder.metadata();
    let names: Vec<usize> = (0..metadata.len() - 6).filter(|&at| metadata[at..at + 6] == *b"X\x01\0\0\0v").collect();
    assert_eq!(names.len(), 3, "of the tensor, and of two items");
    for (at, rule) in
        names.into_iter().zip(["distributed.unnamed-item", "distributed.doubled-item", "distributed.doubled-item"])
    {
        let mut damaged = metadata.clone();
        damaged[at + 5] = b'w';
        fs::write(path.join(".metadata"), &damaged).unwrap();
        let error = open(&path, true).expect_err("refused");
        assert_eq!(error.diagnostic().unwrap().rule.id, rule, "{error}");
        let opened = open(&path, false).unwrap();
        let found: Vec<&str> = opened.catalog().findings().iter().map(|finding| finding.rule.id).collect();
        if rule == "distributed.doubled-item" {
            assert!(found.contains(&"distributed.missing-item"), "{found:?}");
            assert!(opened.get("w").is_err(), "it has two items for one place");
        }
    }
}

#[test]
fn names_that_leave_the_folder() {
    for name in ["../other/__0_0.distcp", "/etc/passwd", "a/../../b", "", "C:\\x", "..", "a//b", "x\0"] {
        let mut folder = two_ranks();
        folder.tensors[0].2[0].item = Some((name.into(), 0, 500));
        breaks(&folder, "distributed.path");
    }
}

#[test]
fn two_pieces_in_the_same_bytes() {
    let mut folder = two_ranks();
    folder.tensors[0].2[1].item = folder.tensors[0].2[0].item.clone();
    breaks(&folder, "distributed.shared-item");
}

#[test]
fn an_item_that_is_another_than_the_metadata_say() {
    for other in [item(&[0.; 6], &[3, 2], &[2, 1]), item(&[0.; 4], &[4], &[1]), vec![b'x'; 600]] {
        let mut folder = two_ranks();
        folder.tensors[0].2[0].item = Some(("__0_0.distcp".into(), 0, other.len() as i64));
        folder.files[0].1 = other;
        let (_kept, path) = folder.write();
        let checkpoint = open(&path, true).unwrap();
        let error = values(&checkpoint, "w").expect_err("refused");
        let fault = error.diagnostic().unwrap_or_else(|| panic!("{error}"));
        assert_eq!((fault.tensor.as_deref(), fault.file()), (Some("w"), &*path.join("__0_0.distcp")), "{fault}");
        let found = check_items(&[&path], &OpenOptions::default()).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].rule.id, fault.rule.id), ("distributed.item", "distributed.item"));
    }
}

#[test]
fn an_item_that_was_put_through_an_extension() {
    let folder = Folder { transform: Some("stream.aes/1".into()), ..two_ranks() };
    let (_kept, path) = folder.write();
    let error = values(&open(&path, true).unwrap(), "w").expect_err("refused");
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
    assert!(error.to_string().contains("'stream.aes/1'"), "{error}");
    assert_eq!(error.diagnostic().unwrap().rule.id, "distributed.transform");
}

#[test]
fn values_are_read_and_what_is_none_is_noted() {
    let mut folder = two_ranks();
    let value = [b"\x80\x02".to_vec(), text("seven"), b".".to_vec()].concat();
    let value = saved(&value, &[]);
    folder.values.push(("note".into(), ("__2_0.distcp".into(), 3, value.len() as i64)));
    folder.files.push(("__2_0.distcp".into(), [b"abc".to_vec(), value].concat()));
    let (_kept, path) = folder.write();
    let checkpoint = open(&path, true).unwrap();
    let objects: Vec<_> = checkpoint.catalog().objects().map(|object| (object.name, object.source(99))).collect();
    assert_eq!(objects, [("note", "'seven'".to_owned())]);
    assert!(checkpoint.catalog().findings().is_empty());
    folder.values.push(("other".into(), ("__2_0.distcp".into(), 0, 3)));
    let (_kept, path) = folder.write();
    let checkpoint = open(&path, true).unwrap();
    assert_eq!(checkpoint.catalog().findings()[0].rule.id, "distributed.values");
    assert_eq!(checkpoint.catalog().objects().count(), 1);
}

#[test]
fn more_bytes_of_metadata_than_may_be() {
    let (_kept, path) = two_ranks().write();
    let mut options = OpenOptions::default();
    options.format.limits.header_bytes = 100;
    let error = Checkpoint::open(&[&path], &options).expect_err("refused");
    assert_eq!(error.diagnostic().unwrap().rule.id, "distributed.limit");
}

#[test]
fn a_folder_without_metadata() {
    let (_kept, path) = two_ranks().write();
    fs::remove_file(path.join(".metadata")).unwrap();
    for path in [path.clone(), path.join("__0_0.distcp")] {
        let error = open(&path, true).expect_err("refused");
        assert_eq!(error.diagnostic().unwrap().rule.id, "distributed.no-metadata");
    }
}

#[test]
fn metadata_that_are_something_else() {
    let (_kept, path) = two_ranks().write();
    let file = path.join(".metadata");
    let class = object("torch.distributed.checkpoint.metadata", "StorageMeta", &[]);
    let foreign = object("os.path", "Metadata", &[]);
    let bare = object("torch.distributed.checkpoint.metadata", "Metadata", &[]);
    for root in [class, foreign, bare, text("x"), b"N".to_vec()] {
        fs::write(&file, [b"\x80\x02".to_vec(), root, b".".to_vec()].concat()).unwrap();
        let error = open(&path, true).expect_err("refused");
        assert_eq!(error.diagnostic().unwrap().rule.id, "distributed.metadata", "{error}");
    }
    let other = path.join("x.bin");
    fs::write(&other, two_ranks().metadata()).unwrap();
    let error = open(&other, true).expect_err("refused");
    assert_eq!(error.diagnostic().unwrap().rule.id, "distributed.metadata", "{error}");
}

#[test]
fn what_metadata_would_run_is_listed_and_not_run() {
    let mut folder = two_ranks();
    folder.planner = b"cos\nsystem\n(X\x04\0\0\0evilt\x52".to_vec();
    let (_kept, path) = folder.write();
    let checkpoint = open(&path, true).unwrap();
    let names: Vec<String> = checkpoint.catalog().globals().map(|(_, global)| global.full_name()).collect();
    assert!(names.contains(&"os.system".to_owned()), "{names:?}");
    assert_eq!(values(&checkpoint, "w").unwrap().len(), 8);
}

#[test]
fn a_million_chunks_that_are_one_are_an_overlap_within_bounds() {
    let folder = two_ranks();
    let mut pickle = folder.metadata();
    // The list of chunks repeats one chunk, in two bytes each.
    let chunk = object(
        "torch.distributed.checkpoint.metadata",
        "ChunkStorageMetadata",
        &[
            ("offsets", b"ctorch\nSize\n(L0L\nL0L\nt\x85R".to_vec()),
            ("sizes", b"ctorch\nSize\n(L2L\nL2L\nt\x85R".to_vec()),
        ],
    );
    let at = pickle.windows(chunk.len()).position(|window| window == chunk).expect("the first chunk");
    let again = [b"q\x01".to_vec(), b"h\x01".repeat(1_000_000)].concat();
    pickle.splice(at + chunk.len()..at + chunk.len(), again);
    let (_kept, path) = folder.write();
    fs::write(path.join(".metadata"), pickle).unwrap();
    let error = open(&path, true).expect_err("refused");
    let rule = error.diagnostic().unwrap().rule.id;
    assert!(["distributed.overlap", "memory.budget"].contains(&rule), "{error}");
}
