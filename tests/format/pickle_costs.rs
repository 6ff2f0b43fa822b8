//! Small pickles that would take much time or memory: the cost of each is bounded by its length, or it is refused.

use std::time::{Duration, Instant};

use max_weights::error::Error;
use max_weights::format::HeaderLimits as FileLimits;
use max_weights::format::pickle::{PersistentIds, PickleLimits, PickleObject, Pickled, StorageRef, leaves, read};
use max_weights::format::torch::{StorageLocation, TorchFrame, build};
use max_weights::tensor::Span;

/// A quadratic cost would be minutes.
const PATIENCE: Duration = Duration::from_secs(20);
const MANY: usize = 200_000;

/// A tensor of two float32 of the storage `0`.
const TENSOR: &[u8] = b"ctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04tQK\x00K\x02\x85K\x01\x85\x89}tR";

fn text(value: &[u8]) -> Vec<u8> {
    [b"X".as_slice(), &u32::try_from(value.len()).unwrap().to_le_bytes(), value].concat()
}

fn accepted(bytes: &[u8]) -> Pickled {
    read(bytes, 0, &PickleLimits::default(), PersistentIds::Zip).unwrap_or_else(|error| panic!("{error}"))
}

fn rule(error: &Error) -> &'static str {
    error.diagnostic().expect("a fault").rule.id
}

#[track_caller]
fn has_names_without_end(bytes: &[u8]) {
    let start = Instant::now();
    let error = leaves(&accepted(bytes), &PickleLimits::default()).expect_err("names without end");
    assert_eq!(rule(&error), "pickle.leaves", "{error}");
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

/// A value of an unknown class, in the memo at 1; a tensor at 0.
fn opaque() -> Vec<u8> {
    [TENSOR, b"q\x000c__main__\nThing\n)Rq\x01"].concat()
}

#[test]
fn a_placeholder_whose_items_have_one_long_key() {
    let mut bytes = [opaque(), text(&vec![b'k'; 1 << 20]), b"q\x020(".to_vec()].concat();
    bytes.extend(b"h\x02h\x00".repeat(MANY));
    bytes.extend(b"u.");
    has_names_without_end(&bytes);
}

#[test]
fn a_placeholder_whose_states_are_one_long_dict() {
    let mut bytes = [opaque().as_slice(), b"}("].concat();
    for key in 0..MANY {
        bytes.extend(text(key.to_string().as_bytes()));
        bytes.extend(b"h\x00");
    }
    bytes.extend(b"uq\x020");
    bytes.extend(b"h\x02b".repeat(MANY));
    bytes.push(b'.');
    has_names_without_end(&bytes);
}

#[test]
fn distributed_tensors_with_one_long_state() {
    // Each searches the dict for its local shard.
    let mut bytes = [TENSOR, b"q\x000}("].concat();
    for key in 0..MANY {
        bytes.extend(text(key.to_string().as_bytes()));
        bytes.extend(b"h\x00");
    }
    bytes.extend(b"uq\x020ctorch._tensor\n_rebuild_from_type_v2\nq\x03(");
    bytes.extend(b"ctorch._utils\n_rebuild_wrapper_subclass\nctorch.distributed.tensor\nDTensor\nq\x04");
    bytes.extend(b"(h\x04ctorch\nfloat32\nK\x04\x85K\x01\x85K\x00NN\x89th\x02tq\x050](");
    bytes.extend(b"h\x03h\x05R".repeat(MANY));
    bytes.extend(b"e.");
    has_names_without_end(&bytes);
}

#[test]
fn a_long_key_that_is_set_again_and_again() {
    let start = Instant::now();
    let mut bytes = [text(&vec![b'k'; 4 << 20]), b"q\x000}(".to_vec()].concat();
    bytes.extend(b"h\x00K\x01".repeat(MANY));
    bytes.extend(b"h\x00K\x07u.");
    let pickled = accepted(&bytes);
    let entries = &pickled.objects.dict(pickled.root).unwrap().entries;
    assert_eq!(entries.len(), 1);
    assert_eq!(pickled.objects.get(entries[0].1), &PickleObject::Int(7));
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

#[test]
fn long_keys_are_equal_by_their_content() {
    let long = text(&vec![b'k'; 1000]);
    let same_as_bytes = [b"B\xe8\x03\x00\x00".as_slice(), &vec![b'k'; 1000]].concat();
    let bytes = [b"}(".as_slice(), &long, b"K\x01", &long, b"K\x02", &same_as_bytes, b"K\x03u."].concat();
    let pickled = accepted(&bytes);
    let entries = &pickled.objects.dict(pickled.root).unwrap().entries;
    let values: Vec<&PickleObject> = entries.iter().map(|entry| pickled.objects.get(entry.1)).collect();
    assert_eq!(values, [&PickleObject::Int(2), &PickleObject::Int(3)]);
}

#[test]
fn a_float_beyond_every_integer_is_no_key_of_one() {
    // 2^63 as a float, and 2^63 - 1.
    let bytes = b"}(G\x43\xe0\x00\x00\x00\x00\x00\x00K\x01\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\x02u.";
    let pickled = accepted(bytes);
    assert_eq!(pickled.objects.dict(pickled.root).unwrap().entries.len(), 2);
}

#[test]
fn a_numpy_integer_of_half_a_million_bytes_as_a_key() {
    let code = b"cnumpy\ndtype\n(U\x02i9\x89\x88tR".as_slice();
    let pickled = accepted(&[code, b"."].concat());
    assert!(matches!(pickled.objects.get(pickled.root), PickleObject::Opaque(_)), "NumPy has no such dtype");
    let mut zeros = vec![b'0'; 1 << 20];
    zeros.push(b'4');
    zeros.insert(0, b'i');
    let mut bytes = [text(&zeros), b"q\x000cnumpy\ndtype\nq\x010](".to_vec()].concat();
    bytes.extend(b"h\x01(h\x00\x89\x88tR".repeat(MANY));
    bytes.extend(b"e.");
    let start = Instant::now();
    accepted(&bytes);
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

fn built(bytes: &[u8]) -> Result<usize, Error> {
    let span = Span::within(16, 0, 16).unwrap();
    let places = |_: usize, _: &StorageRef| Some(StorageLocation::stored(span));
    let frame = TorchFrame { big_endian: false, places: &places };
    build(accepted(bytes), frame, &PickleLimits::default()).map(|(tensors, _)| tensors.len())
}

#[test]
fn sparse_tensors_within_sparse_tensors_have_parts_without_end() {
    // Each level has the one before three times.
    let mut bytes = [TENSOR, b"q\x000"].concat();
    bytes.extend(b"ctorch._utils\n_rebuild_sparse_tensor\nq\x010ctorch.serialization\n_get_layout\n");
    bytes.extend([text(b"torch.sparse_csr"), b"\x85Rq\x020".to_vec()].concat());
    for _ in 0..8 {
        bytes.extend(b"h\x01(h\x02(h\x00h\x00h\x00K\x02\x85ttRq\x000");
    }
    bytes.extend(b"](");
    bytes.extend(b"h\x00".repeat(1000));
    bytes.extend(b"e.");
    let error = built(&bytes).expect_err("parts without end");
    assert_eq!(rule(&error), "pickle.leaves", "{error}");
}

#[test]
fn one_tensor_of_64_dimensions_under_a_million_names() {
    let (shape, ones) = (b"K\x01".repeat(64), b"K\x01".repeat(64));
    let tensor = [
        b"ctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04tQK\x00("
            .as_slice(),
        &shape,
        b"t(",
        &ones,
        b"t\x89}tRq\x000](",
        &b"h\x00".repeat(1_000_000),
        b"e.",
    ]
    .concat();
    let error = built(&tensor).expect_err("a gigabyte of shapes");
    assert_eq!(rule(&error), "pickle.leaves", "{error}");
    assert!(FileLimits::default().rank >= 64);
}

#[test]
fn a_line_does_not_lose_its_carriage_return() {
    // Python does not take it off either: another class, and another text.
    let pickled = accepted(b"cos\r\nsystem\r\n)R.");
    assert_eq!(pickled.globals[0].full_name(), "os\r.system\r");
    let pickled = accepted(b"Va\r\n.");
    assert_eq!(pickled.objects.text(pickled.root), Some("a\r"));
}

#[test]
fn a_date_of_numpy_has_no_value_without_its_unit() {
    let date = b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(U\x02M8\x89\x88tR(K\x04U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb";
    let bytes = [date.as_slice(), b"C\x08\x01\x00\x00\x00\x00\x00\x00\x00tR."].concat();
    let pickled = accepted(&bytes);
    assert!(matches!(pickled.objects.get(pickled.root), PickleObject::Opaque(_)));
}

#[test]
fn more_memory_than_is_allowed_is_refused_at_the_instruction_that_asks_for_it() {
    let limits = PickleLimits { memory: Some(1 << 20), ..PickleLimits::default() };
    let bytes = [b"](".as_slice(), &b"]".repeat(100_000), b"e."].concat();
    let error = read(&bytes, 0, &limits, PersistentIds::Zip).expect_err("too much");
    let fault = error.diagnostic().expect("a fault");
    assert_eq!(fault.rule.id, "pickle.memory");
    assert!(fault.offset.is_some_and(|offset| offset > 1000), "{fault}");
    assert!(fault.help.contains("16 times"));
    accepted(&bytes);
}

#[test]
fn a_size_of_a_size_of_a_size_has_no_depth() {
    let mut bytes = b"ctorch\nSize\nq\x000K\x02K\x03\x86q\x01".to_vec();
    bytes.extend(b"0h\x00h\x01\x85Rq\x01".repeat(300_000));
    bytes.push(b'.');
    let pickled = accepted(&bytes);
    assert_eq!(pickled.objects.elements(pickled.root).map(<[_]>::len), Some(2));
}
