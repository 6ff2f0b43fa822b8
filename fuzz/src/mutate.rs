//! Changes of an input that know what a header is: they get past the syntax, to the rules behind it.

use max_weights::dtype::DType;

use super::json::Json;
use super::layout::Layout;
use super::random::Random;
use super::{archive, names, pickle};

/// Texts that a header, or error messages about it, consist of.
const COMPONENTS: [&str; 16] = [
    "weight", "bias", "model", "layers", "0", "1", "9", "10", "007", "q_proj", "-", "é", "模型", "", "\\u0061", "x\\n",
];
const DTYPES: [&str; 8] = ["F8", "U24", "", "f32", "F32 ", "\\u0046\\u0033\\u0032", "\\u001b[31m", "<b>&"];
const NUMBERS: [&str; 24] = [
    "0",
    "1",
    "2",
    "3",
    "4",
    "7",
    "8",
    "64",
    "255",
    "256",
    "65536",
    "4294967295",
    "4294967296",
    "1073741824",
    "4611686018427387904",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551608",
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "-0",
    "1.0",
    "1e2",
];
const VALUES: [&str; 10] =
    ["null", "true", "\"\"", "\"F32\"", "[]", "{}", "[0,0]", "{\"a\":\"b\"}", "1e999", "\"\\ud800\""];
/// An index of the shards that the target `index` has.
const INDEX: &str = r#"{"metadata":{"total_size":3},"weight_map":{"w":"a.safetensors","x.weight":"b.safetensors","y.0.bias":"b.safetensors"}}"#;
const INDEXED: [&str; 3] = ["\"w\"", "\"x.weight\"", "\"y.0.bias\""];
const SHARD_NAMES: [&str; 16] = [
    "a.safetensors",
    "a.safetensors",
    "b.safetensors",
    "b.safetensors",
    "c.safetensors",
    "model-00001-of-00002.safetensors",
    "model.safetensors.index.json",
    "../a.safetensors",
    "./a.safetensors",
    "a.safetensors/b",
    "/etc/passwd",
    "C:\\\\a",
    "a\\u0000",
    "\\u001b[31m",
    "模型\\u202e",
    "",
];
const FIELDS: [&str; 3] = ["dtype", "shape", "data_offsets"];

/// A changed input of at most `most` bytes.
pub fn mutate(input: &[u8], layout: Layout, most: usize, random: &mut Random) -> Vec<u8> {
    if random.one_in(8) {
        return bytes(input, most, random);
    }
    if matches!(layout, Layout::Gguf | Layout::GgufHeader) {
        return super::gguf::mutate::mutate(input, layout, most, random, bytes);
    }
    if layout == Layout::Pickle {
        return pickle::change(input, most, random);
    }
    match layout {
        Layout::Torch => return super::torch::overwrite(input, random),
        Layout::Archive if random.one_in(4) => return super::torch::overwrite(input, random),
        Layout::Archive => return archive::change(input, most, random).unwrap_or_else(|| bytes(input, most, random)),
        Layout::Names => return names::change(input, most, random),
        Layout::Program => return bytes(input, most, random),
        _ => {}
    }
    let header = layout.header(input);
    let text = std::str::from_utf8(header).unwrap_or_default();
    let document = Json::parse(text).filter(|document| matches!(document, Json::Object(_)));
    let mut document = document.filter(|_| !random.one_in(50)).unwrap_or_else(|| match layout {
        Layout::Index => Json::parse(INDEX).unwrap_or(Json::List(Vec::new())),
        _ => generate(random),
    });
    let mut data = layout.data_len(input);
    for _ in 0..=random.below(3) {
        match layout {
            Layout::Index => change_index(&mut document, random),
            _ => change(&mut document, random),
        }
    }
    if layout == Layout::Index {
    } else if !random.one_in(4) {
        data = lay_out(&mut document, random);
    } else if random.one_in(4) {
        data = random.pick(&NUMBERS).parse().unwrap_or(data);
    }
    let mut header = String::new();
    if random.one_in(20) {
        header.push_str(random.pick(&[" ", "\n", "\u{feff}", "\0"]));
    }
    let spaced = random.one_in(4);
    document.write(&mut header, spaced.then_some(&mut *random));
    if random.one_in(3) {
        header.push_str(&random.pick(&[" ", "  ", "\n", "x", "}", "\0"]).repeat(1 + random.below(9)));
    }
    let mut header = header.into_bytes();
    if random.one_in(6) {
        header = bytes(&header, most, random);
    }
    layout.input(&header, data, most)
}

/// For libFuzzer: changes the first `size` bytes of `data` in place, by itself or by libFuzzer's own mutations, and returns the new size.
pub fn or_by(
    fuzzer: fn(&mut [u8], usize, usize) -> usize,
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    layout: Layout,
) -> usize {
    let mut random = Random::new(u64::from(seed));
    if random.one_in(3) {
        return fuzzer(data, size, max_size);
    }
    let changed = mutate(&data[..size], layout, max_size, &mut random);
    data[..changed.len()].copy_from_slice(&changed);
    changed.len()
}

/// Changes of bytes, for which nothing needs to be understood.
pub fn bytes(input: &[u8], most: usize, random: &mut Random) -> Vec<u8> {
    let mut changed = input.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(changed.len());
        let end = (at + 1 + random.below(20)).min(changed.len());
        match random.below(6) {
            0 if !changed.is_empty() => changed[at] ^= 1 << random.below(8),
            1 if !changed.is_empty() => changed[at] = random.next() as u8,
            2 => drop(changed.drain(at..end)),
            3 => drop(changed.splice(at..at, random.pick(&VALUES).bytes())),
            4 => changed.truncate(at),
            _ => {
                let part = changed[at..end].to_vec();
                let to = random.below(changed.len());
                drop(changed.splice(to..to, part));
            }
        }
    }
    changed.truncate(most);
    changed
}

/// A header from nothing: valid, once it is laid out.
fn generate(random: &mut Random) -> Json {
    let mut entries: Vec<(String, Json)> = (0..random.below(6)).map(|_| (name(random), entry(random))).collect();
    if random.one_in(3) {
        entries.push(("\"__metadata__\"".into(), Json::Object(vec![("\"format\"".into(), Json::scalar("\"pt\""))])));
    }
    Json::Object(entries)
}

fn entry(random: &mut Random) -> Json {
    let shape: Vec<usize> = (0..random.below(4)).map(|_| random.below(5)).collect();
    let values = [Json::Scalar(dtype(random)), Json::list(shape), Json::list([0, 0])];
    Json::Object(FIELDS.iter().map(|field| format!("\"{field}\"")).zip(values).collect())
}

fn name(random: &mut Random) -> String {
    let components: Vec<&str> = (0..=random.below(5)).map(|_| random.pick(&COMPONENTS)).collect();
    format!("\"{}\"", components.join("."))
}

fn dtype(random: &mut Random) -> String {
    let known = DType::from_index(random.below(DType::COUNT)).safetensors_name();
    format!("\"{}\"", if random.one_in(6) { random.pick(&DTYPES) } else { known })
}

/// One change of a document.
fn change(document: &mut Json, random: &mut Random) {
    if random.one_in(10) {
        *document.any_mut(random) =
            Json::scalar(if random.one_in(2) { random.pick(&VALUES) } else { random.pick(&NUMBERS) });
    }
    let Json::Object(entries) = document else { return };
    let which = random.below(entries.len());
    let other = random.below(entries.len());
    match random.below(8) {
        0 => entries.insert(which, (name(random), entry(random))),
        1 => {
            for i in 0..random.below(40) {
                entries.push((format!("\"layers.{i}.{}", name(random).trim_start_matches('"')), entry(random)));
            }
        }
        2 => metadata(entries, random),
        _ if entries.is_empty() => {}
        3 => {
            let same = entries[which].clone();
            entries.insert(other, same);
        }
        4 => drop(entries.remove(which)),
        5 => entries.swap(which, other),
        6 => entries[which].0 = rename(&entries[which].0, random),
        _ => change_entry(&mut entries[which].1, random),
    }
}

/// One change of an index.
fn change_index(document: &mut Json, random: &mut Random) {
    if random.one_in(5) {
        *document.any_mut(random) = Json::scalar(random.pick(&VALUES));
    }
    if let Some(size) = document.get_mut("metadata").and_then(|metadata| metadata.get_mut("total_size")) {
        *size = Json::scalar(random.pick(&NUMBERS));
    }
    let top = random.one_in(10);
    let map = if top { Some(document) } else { document.get_mut("weight_map") };
    let Some(Json::Object(entries)) = map else { return };
    let which = random.below(entries.len());
    let other = random.below(entries.len());
    match random.below(6) {
        0 | 1 => {
            let shard = format!("\"{}\"", random.pick(&SHARD_NAMES));
            let name = if random.one_in(2) { name(random) } else { random.pick(&INDEXED).to_owned() };
            entries.insert(which, (name, Json::Scalar(shard)));
        }
        _ if entries.is_empty() => {}
        2 => drop(entries.remove(which)),
        3 => {
            let same = entries[which].clone();
            entries.insert(other, same);
        }
        4 => entries[which].0 = rename(&entries[which].0, random),
        _ => entries[which].1 = Json::Scalar(format!("\"{}\"", random.pick(&SHARD_NAMES))),
    }
}

fn rename(key: &str, random: &mut Random) -> String {
    let name = key.trim_matches('"');
    let component = random.pick(&COMPONENTS);
    match random.below(7) {
        0 => format!("\"{name}.{component}\""),
        1 => format!("\"{component}.{name}\""),
        2 => format!("\"{name}{component}\""),
        3 => format!("\"{}\"", name.rsplit_once('.').map_or("", |(parent, _)| parent)),
        4 => format!("\"{name}\\u0000\""),
        5 => format!("\"{}\"", format!("{component}.").repeat(random.below(70))),
        _ => random.pick(&["\"__metadata__\"", "\"\"", "\".\"", "\"..\"", "\"name\"", "\"\\\"}\""]).to_string(),
    }
}

fn metadata(entries: &mut Vec<(String, Json)>, random: &mut Random) {
    let value = match random.below(4) {
        0 => Json::scalar("null"),
        1 => Json::Object(Vec::new()),
        2 => Json::scalar(random.pick(&VALUES)),
        _ => Json::Object((0..random.below(5)).map(|_| (name(random), Json::Scalar(name(random)))).collect()),
    };
    entries.insert(random.below(entries.len() + 1), ("\"__metadata__\"".into(), value));
}

fn change_entry(entry: &mut Json, random: &mut Random) {
    let number = |random: &mut Random| Json::scalar(random.pick(&NUMBERS));
    match random.below(8) {
        0 => {
            if let Some(have) = entry.get_mut("dtype") {
                *have = Json::Scalar(dtype(random));
            }
        }
        1 | 2 => {
            if let Some(Json::List(dims)) = entry.get_mut("shape") {
                let at = random.below(dims.len());
                match random.below(4) {
                    0 if !dims.is_empty() => drop(dims.remove(at)),
                    1 => dims.insert(at, number(random)),
                    2 => dims.extend((0..random.below(70)).map(|_| Json::scalar(1))),
                    _ if !dims.is_empty() => dims[at] = number(random),
                    _ => {}
                }
            }
        }
        3 | 4 => {
            if let Some(Json::List(offsets)) = entry.get_mut("data_offsets") {
                let at = random.below(offsets.len());
                match random.below(4) {
                    0 => offsets.reverse(),
                    1 => offsets.push(number(random)),
                    _ if offsets.is_empty() => {}
                    2 => offsets[at] = number(random),
                    _ => {
                        let moved =
                            offsets[at].number().unwrap_or(0).wrapping_add(random.below(17) as u64).wrapping_sub(8);
                        offsets[at] = Json::scalar(moved);
                    }
                }
            }
        }
        5 => {
            if let Json::Object(fields) = entry {
                let field = random.pick(&["dtype", "shape", "data_offsets", "strides", "", "x"]);
                fields.push((format!("\"{field}\""), Json::scalar(random.pick(&VALUES))));
            }
        }
        6 => {
            if let Json::Object(fields) = entry {
                fields.truncate(random.below(fields.len() + 1));
            }
        }
        _ => {
            // As the crate's derive reads it too.
            *entry = Json::List(FIELDS.iter().filter_map(|field| entry.get(field).cloned()).collect());
        }
    }
}

/// Gives every tensor the place that follows from the shapes before it; returns the bytes of all.
fn lay_out(document: &mut Json, random: &mut Random) -> u64 {
    let Json::Object(entries) = document else { return 0 };
    let backwards = random.one_in(4);
    let mut end = 0u64;
    for i in 0..entries.len() {
        let (_, entry) = if backwards { entries.iter_mut().rev().nth(i) } else { entries.get_mut(i) }.expect("inside");
        let bytes = size(entry).unwrap_or(random.below(9) as u64);
        if let Some(offsets) = entry.get_mut("data_offsets") {
            let start = end;
            end = end.wrapping_add(bytes);
            *offsets = Json::list([start, end]);
        }
    }
    end
}

fn size(entry: &Json) -> Option<u64> {
    let Json::Scalar(dtype) = entry.get("dtype")? else { return None };
    let Json::List(dims) = entry.get("shape")? else { return None };
    let dtype = DType::from_safetensors_name(dtype.trim_matches('"'))?;
    let elements = dims.iter().try_fold(1u64, |product, dim| product.checked_mul(dim.number()?))?;
    Some(elements.checked_mul(dtype.bits() as u64)? / 8)
}
