//! Changes of a GGUF header that know its fields: they get past the lengths, to the rules behind them.

use super::super::layout::Layout;
use super::super::random::Random;
use super::document::{ARRAY, Array, Document, Elements, STRING, Tensor, Value, size};

const NAMES: [&[u8]; 14] = [
    b"token_embd.weight",
    b"blk.0.attn_q.weight",
    b"blk.1.attn_q.weight",
    b"blk.10.ffn_down.weight",
    b"output",
    b"a",
    b"",
    b".",
    b"\0",
    b"\xff",
    b"a\0b",
    b"\x1b[31m",
    b"<b>&",
    b"a.very.long.name.of.more.than.sixty.four.bytes.for.older.readers.weight",
];
const KEYS: [&[u8]; 10] = [
    b"general.architecture",
    b"general.alignment",
    b"general.alignment",
    b"split.no",
    b"split.count",
    b"split.tensors.count",
    b"tokenizer.ggml.tokens",
    b"tokenizer.ggml.scores",
    b"",
    b"\xff",
];
const NUMBERS: [u64; 30] = [
    0,
    1,
    2,
    3,
    4,
    8,
    16,
    31,
    32,
    33,
    64,
    128,
    255,
    256,
    257,
    512,
    1 << 16,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 60,
    1 << 61,
    1 << 62,
    (1 << 63) - 32,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 31,
    u64::MAX,
];
/// Bytes that a row of these elements takes: the packed types, and the plain ones.
const TYPES: [(u32, u64, u64); 35] = [
    (0, 1, 4),
    (1, 1, 2),
    (24, 1, 1),
    (25, 1, 2),
    (26, 1, 4),
    (27, 1, 8),
    (28, 1, 8),
    (30, 1, 2),
    (2, 32, 18),
    (3, 32, 20),
    (6, 32, 22),
    (7, 32, 24),
    (8, 32, 34),
    (9, 32, 36),
    (10, 256, 84),
    (11, 256, 110),
    (12, 256, 144),
    (13, 256, 176),
    (14, 256, 210),
    (15, 256, 292),
    (16, 256, 66),
    (17, 256, 74),
    (18, 256, 98),
    (19, 256, 50),
    (20, 32, 18),
    (21, 256, 110),
    (22, 256, 82),
    (23, 256, 136),
    (29, 256, 56),
    (34, 256, 54),
    (35, 256, 66),
    (39, 32, 17),
    (40, 64, 36),
    (41, 128, 18),
    (42, 64, 18),
];
const ODD_TYPES: [u32; 8] = [4, 5, 31, 38, 43, 142, 1 << 16, u32::MAX];

/// A changed input of at most `most` bytes.
pub fn mutate(
    input: &[u8],
    layout: Layout,
    most: usize,
    random: &mut Random,
    bytes: fn(&[u8], usize, &mut Random) -> Vec<u8>,
) -> Vec<u8> {
    let known = Document::parse(layout.header(input)).filter(|_| !random.one_in(50));
    let mut document = known.unwrap_or_else(|| generate(random));
    for _ in 0..=random.below(3) {
        change(&mut document, random);
    }
    let mut data = if random.one_in(4) { random.pick(&NUMBERS) } else { 0 };
    if !random.one_in(4) {
        data = lay_out(&mut document, random);
    }
    let mut header = document.write();
    if random.one_in(6) {
        header = bytes(&header, most, random);
    }
    if layout == Layout::GgufHeader {
        // What lies between the header and the data counts as data here.
        let padding = header.len().next_multiple_of(32) - header.len();
        return layout.input(&header, data.saturating_add(padding as u64), most);
    }
    let start = header.len();
    let end = (start.next_multiple_of(alignment(&document).min(64) as usize) as u64).saturating_add(data);
    header.resize(end.min(most as u64).max(start as u64) as usize, 0);
    for (i, byte) in header[start..].iter_mut().enumerate() {
        *byte = (i as u8).wrapping_mul(31).wrapping_add(7);
    }
    header.truncate(most);
    header
}

/// A header from nothing: valid, once it is laid out.
fn generate(random: &mut Random) -> Document {
    let mut document = Document {
        version: random.pick(&[1, 2, 3, 3, 3]),
        big_endian: random.one_in(4),
        keys: Vec::new(),
        tensors: Vec::new(),
        claims: [None; 2],
        end: 0,
    };
    for i in 0..random.below(6) {
        document.tensors.push(tensor(i, random));
    }
    for i in 0..random.below(4) {
        document.keys.push((format!("key.{i}").into_bytes(), value(random, 0)));
    }
    document
}

fn tensor(number: usize, random: &mut Random) -> Tensor {
    let (type_id, elements, _) = random.pick(&TYPES);
    let mut dims: Vec<u64> = (0..random.below(5)).map(|_| random.below(4) as u64).collect();
    if let Some(row) = dims.first_mut() {
        *row = elements * (1 + random.below(2) as u64);
    } else if elements > 1 {
        dims.push(elements);
    }
    let name = if random.one_in(3) { random.pick(&NAMES).into() } else { format!("blk.{number}.weight").into_bytes() };
    Tensor { name, dims, type_id, offset: 0, place: 0..0 }
}

fn value(random: &mut Random, depth: usize) -> Value {
    let type_id = random.below(13) as u32;
    if let Some(size) = size(type_id) {
        return number(type_id, size, random);
    }
    if type_id == STRING || depth > 20 {
        return Value::Text(random.pick(&NAMES).into());
    }
    let element = if random.one_in(2) { random.pick(&[ARRAY, STRING]) } else { random.below(14) as u32 };
    let count = random.below(5);
    let elements = match size(element) {
        Some(size) => Elements::Numbers((0..count * size).map(|_| random.next() as u8).collect()),
        None if element == STRING => {
            Elements::Values((0..count).map(|_| Value::Text(random.pick(&NAMES).into())).collect())
        }
        None if element == ARRAY => Elements::Values((0..count).map(|_| nested(random, depth + 1)).collect()),
        None => Elements::Values(Vec::new()),
    };
    let claim = random.one_in(8).then(|| random.pick(&NUMBERS));
    Value::Array(Array { element, claim, elements })
}

/// An array of arrays, as deep as may be or a little deeper.
fn nested(random: &mut Random, depth: usize) -> Value {
    if depth > 18 || random.one_in(8) {
        return Value::Array(Array { element: 0, claim: None, elements: Elements::Numbers(vec![1, 2]) });
    }
    let elements = Elements::Values(vec![nested(random, depth + 1)]);
    Value::Array(Array { element: ARRAY, claim: None, elements })
}

fn number(type_id: u32, size: usize, random: &mut Random) -> Value {
    Value::Number(type_id, random.pick(&NUMBERS).to_le_bytes()[..size].into())
}

/// One change of a header.
fn change(document: &mut Document, random: &mut Random) {
    let tensors = document.tensors.len();
    let (which, other) = (random.below(tensors), random.below(tensors));
    match random.below(12) {
        0 => document.tensors.insert(which, tensor(random.below(40), random)),
        1 => (0..random.below(12)).for_each(|i| document.tensors.push(tensor(i, random))),
        2 | 3 => change_key(document, random),
        4 if random.one_in(4) => document.version = random.pick(&[0, 1, 2, 3, 4, 0x1_0003]),
        4 => document.big_endian ^= true,
        5 if random.one_in(2) => document.claims[random.below(2)] = Some(random.pick(&NUMBERS)),
        _ if tensors == 0 => {}
        6 => {
            let same = document.tensors[which].clone();
            document.tensors.insert(other, same);
        }
        7 => drop(document.tensors.remove(which)),
        8 => document.tensors.swap(which, other),
        _ => change_tensor(&mut document.tensors[which], random),
    }
}

fn change_tensor(tensor: &mut Tensor, random: &mut Random) {
    let at = random.below(tensor.dims.len());
    match random.below(8) {
        0 => tensor.name = random.pick(&NAMES).into(),
        1 => tensor.type_id = random.pick(&TYPES).0,
        2 => tensor.type_id = random.pick(&ODD_TYPES),
        3 => tensor.offset = random.pick(&NUMBERS),
        4 => tensor.offset = tensor.offset.wrapping_add(random.pick(&[32, 64, 1, u64::MAX - 31])),
        5 => tensor.dims.insert(at, random.pick(&NUMBERS)),
        _ if tensor.dims.is_empty() => {}
        6 => drop(tensor.dims.remove(at)),
        _ => tensor.dims[at] = random.pick(&NUMBERS),
    }
}

fn change_key(document: &mut Document, random: &mut Random) {
    let which = random.below(document.keys.len());
    let key: Vec<u8> = random.pick(&KEYS).into();
    match random.below(6) {
        0 | 1 => document.keys.insert(which, (key, value(random, 0))),
        2 => {
            let type_id = random.pick(&[2, 4, 4, 10]);
            document.keys.insert(which, (key, number(type_id, size(type_id).unwrap_or(4), random)));
        }
        _ if document.keys.is_empty() => {}
        3 => drop(document.keys.remove(which)),
        4 => document.keys[which].0 = key,
        _ => document.keys[which].1 = value(random, 0),
    }
}

/// What the offsets are rounded up to: as the metadata says, if that is a power of two of some use.
fn alignment(document: &Document) -> u64 {
    let message = document.keys.iter().find(|(key, _)| key == b"general.alignment").map(|(_, value)| value);
    let Some(Value::Number(_, bytes)) = message else { return 32 };
    let number = bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    if number.is_power_of_two() { number } else { 32 }
}

/// Gives every tensor the place that follows from the sizes before it; returns the bytes of all.
fn lay_out(document: &mut Document, random: &mut Random) -> u64 {
    let alignment = alignment(document);
    let mut end = 0u64;
    for tensor in &mut document.tensors {
        tensor.offset = end.checked_next_multiple_of(alignment).unwrap_or(end);
        let known = TYPES.iter().find(|(type_id, ..)| *type_id == tensor.type_id);
        let (elements, bytes) = known.map_or((1, 1), |(_, elements, bytes)| (*elements, *bytes));
        let count = tensor.dims.iter().fold(1u64, |product, dim| product.wrapping_mul(*dim));
        end = tensor.offset.wrapping_add((count / elements).wrapping_mul(bytes));
    }
    if random.one_in(8) { end.wrapping_add(random.pick(&[1, 32, u64::MAX])) } else { end }
}
