//! Target `pickle`: the machine that reads pickles, and the names of their values.

use std::collections::HashSet;

use max_weights::error::Error;
use max_weights::format::pickle::{
    PersistentIds, PickleLimits, PickleObject, Pickled, Strided, TensorKind, globals, leaves, read, source_of,
};

use super::random::Random;
use super::{check_message, memory};

/// The declared offset of the input in its file.
const AT: u64 = 1000;

/// Any bytes are refused with their rule and place, or read, for any meaning of external references.
pub fn check(input: &[u8]) {
    for persistent in [PersistentIds::Zip, PersistentIds::Legacy, PersistentIds::Refused] {
        memory::bounded(input.len(), || check_as(input, persistent));
    }
}

fn check_as(input: &[u8], persistent: PersistentIds) {
    let limits = PickleLimits::default();
    let (listed, outcome) = globals(input, AT, &limits, persistent);
    for global in &listed {
        assert!((AT..AT + input.len() as u64).contains(&global.offset), "{global:?}");
    }
    let pickled = match read(input, AT, &limits, persistent) {
        Ok(pickled) => pickled,
        Err(error) => {
            assert_eq!(outcome.expect_err("the same verdict").to_string(), error.to_string());
            return check_error(&error, input.len());
        }
    };
    assert!(outcome.is_ok());
    assert_eq!(pickled.globals, listed);
    check_read(input, &pickled, &limits, persistent);
    check_source(&pickled);
    match leaves(&pickled, &limits) {
        Ok(names) => {
            let mut seen = HashSet::new();
            for leaf in &names {
                assert!(seen.insert(&leaf.name), "two are called {:?}", leaf.name);
                assert!(leaf.object.index() < pickled.objects.len());
            }
            let named: HashSet<_> = names.iter().filter_map(|leaf| leaf.tensor).collect();
            assert!(named.len() <= pickled.tensors.len());
        }
        Err(error) => check_error(&error, input.len()),
    }
}

fn check_error(error: &Error, len: usize) {
    let fault = error.diagnostic().expect("a fault");
    assert!(fault.rule.id.starts_with("pickle.") && !fault.help.is_empty(), "{fault}");
    if let Some(offset) = fault.offset {
        assert!((AT..=AT + len as u64).contains(&offset), "{fault}");
    }
    check_message(&fault.to_string());
}

/// The text of the whole, and of the first calls, has an end and is safe to print.
fn check_source(pickled: &Pickled) {
    const MAX: usize = 300;
    const CALLS: usize = 10;
    for id in pickled.calls().take(CALLS).map(|(id, _)| id).chain([pickled.root]) {
        let text = source_of(pickled, id, MAX);
        assert!(!text.is_empty() && text.chars().count() <= MAX + 1, "{text}");
        check_message(&text);
    }
}

fn check_read(input: &[u8], pickled: &Pickled, limits: &PickleLimits, persistent: PersistentIds) {
    let alone = &input[..pickled.consumed];
    assert_eq!(alone.last(), Some(&b'.'));
    let again = read(alone, AT, limits, persistent).expect("what follows does not matter");
    assert_eq!((again.consumed, again.objects.len()), (pickled.consumed, pickled.objects.len()));
    assert!(read(&alone[..alone.len() - 1], AT, limits, persistent).is_err());
    assert!(pickled.root.index() < pickled.objects.len());
    for (_, object) in pickled.objects.iter() {
        if let PickleObject::Global(id) = object {
            assert!(!pickled.global(*id).full_name().is_empty());
        }
    }
    for tensor in &pickled.tensors {
        match &tensor.kind {
            TensorKind::Strided(strided)
            | TensorKind::Flipped { strided, .. }
            | TensorKind::Quantized { integers: strided, .. } => check_extent(pickled, strided),
            _ => assert!(tensor.not_mappable().is_some()),
        }
    }
}

/// The last element, counted with more room than any file has, is one of the storage.
fn check_extent(pickled: &Pickled, strided: &Strided) {
    if strided.shape.contains(&0) {
        return;
    }
    let steps = strided.shape.iter().zip(&*strided.strides);
    let last =
        steps.fold(u128::from(strided.offset), |at, (size, stride)| at + u128::from(size - 1) * u128::from(*stride));
    let end = (last + 1) * u128::from(strided.dtype.bytes());
    let storage = pickled.storage(strided.storage);
    assert!(end <= u128::from(storage.reach()) && storage.reach() <= storage.bytes(), "{strided:?} of {storage:?}");
}

/// Pieces of pickles that belong together.
const PIECES: [&[u8]; 24] = [
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"ctorch._utils\n_rebuild_tensor_v3\n",
    b"ctorch._utils\n_rebuild_parameter\n",
    b"ctorch._utils\n_rebuild_sparse_tensor\n",
    b"ctorch._utils\n_rebuild_qtensor\n",
    b"ctorch._tensor\n_rebuild_from_type_v2\n",
    b"ctorch\nFloatStorage\n",
    b"ctorch\nfloat16\n",
    b"ccollections\nOrderedDict\n)R",
    b"cnumpy\ndtype\n",
    b"cnumpy.core.multiarray\n_reconstruct\n",
    b"ccopyreg\n_reconstructor\n",
    b"cbuiltins\nset\n",
    b"c__main__\nModel\n)\x81",
    b"(X\x07\x00\x00\x00storagectorch\nHalfStorage\nU\x010U\x03cpuK\x08tQ",
    b"K\x00K\x02\x85K\x01\x85\x89}tR",
    b"h\x00h\x00\x86",
    b"]h\x00a",
    b"}h\x00h\x00s",
    b"}(U\x01aK\x01U\x01bNu",
    b"\x8c\x02os\x8c\x06system\x93",
    b"J\xff\xff\xff\xff",
    b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"N}\x86b",
];
/// The instructions without an operand.
const OPCODES: &[u8] = b"(.012N]}RQabdeolstu)\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94";

/// Puts instructions between instructions.
pub fn change(input: &[u8], most: usize, random: &mut Random) -> Vec<u8> {
    let mut changed = input.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(changed.len());
        match random.below(4) {
            0 => drop(changed.splice(at..at, random.pick(&PIECES).iter().copied())),
            1 => drop(changed.splice(at..at, [OPCODES[random.below(OPCODES.len())]])),
            2 if at < changed.len() => changed[at] = OPCODES[random.below(OPCODES.len())],
            _ => {
                // A number that is one of a length, an index or a size.
                if at < changed.len() {
                    changed[at] = changed[at].wrapping_add(random.below(3) as u8).wrapping_sub(1);
                }
            }
        }
    }
    if random.one_in(2) {
        changed.push(b'.');
    }
    changed.truncate(most);
    changed
}
