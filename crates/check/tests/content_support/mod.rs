//! Checkpoints of a few tensors that the tests make for themselves.
#![allow(dead_code)] // each test program has its own copy of this file

use std::fmt::Write as _;
use std::path::Path;

/// A tensor: name, dtype as safetensors calls it, shape, bytes.
pub(crate) type Tensor<'a> = (&'a str, &'a str, Vec<usize>, Vec<u8>);

/// Writes a safetensors file of these tensors.
pub(crate) fn safetensors(path: &Path, tensors: &[Tensor<'_>]) {
    let (mut header, mut data) = ("{\"__metadata__\":{\"format\":\"pt\"}".to_owned(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let begin = data.len();
        data.extend_from_slice(bytes);
        let end = data.len();
        let _ = write!(
            header,
            ",\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{begin},{end}]}}"
        );
    }
    header.push('}');
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    std::fs::write(path, bytes).expect("a temporary folder");
}

/// Writes a file as PyTorch wrote it before it wrote archives: float32 of one storage, which all of these names are.
pub(crate) fn torch_legacy(path: &Path, names: &[&str], bytes: &[u8]) {
    let count = (bytes.len() as u32 / 4).to_le_bytes();
    torch_legacy_views(path, names, bytes, &[b"J", &count[..], b"\x85K\x01\x85"].concat());
}

/// The same, for tensors with this shape and these strides, encoded as in the pickle.
pub(crate) fn torch_legacy_views(path: &Path, names: &[&str], bytes: &[u8], geometry: &[u8]) {
    let text = |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let count = bytes.len() / 4;
    let count_in_pickle = [b"J", &(count as u32).to_le_bytes()[..]].concat();
    let mut tensors = b"\x80\x02}(".to_vec();
    for name in names {
        tensors.extend([&text(name)[..], b"ctorch._utils\n_rebuild_tensor_v2\n(("].concat());
        tensors.extend([&text("storage")[..], b"ctorch\nFloatStorage\n", &text("0"), &text("cpu")].concat());
        tensors.extend([&count_in_pickle[..], b"NtQK\0", geometry, b"\x89"].concat());
        tensors.extend(b"ccollections\nOrderedDict\n)RtR");
    }
    tensors.extend(b"u.");
    let file = [
        &b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."[..],
        b"\x80\x02M\xe9\x03.",
        &[b"\x80\x02}", &text("little_endian")[..], b"\x88s."].concat(),
        &tensors,
        &[b"\x80\x02]", &text("0")[..], b"a."].concat(),
        &(count as u64).to_le_bytes(),
        bytes,
    ];
    std::fs::write(path, file.concat()).expect("a temporary folder");
}

/// A GGUF file of one tensor of this type and number of elements.
pub(crate) fn gguf(name: &str, kind: u32, elements: u64, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend([1u64.to_le_bytes(), 0u64.to_le_bytes(), (name.len() as u64).to_le_bytes()].concat());
    bytes.extend(name.bytes());
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(elements.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes
}

/// Float32 of these values.
pub(crate) fn f32s(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// `count` different float32.
pub(crate) fn ramp(count: usize, from: f32) -> Vec<u8> {
    f32s((0..count).map(|number| from + number as f32 / 64.0))
}

/// A good model of four tensors.
pub(crate) fn model() -> Vec<Tensor<'static>> {
    vec![
        ("embed.weight", "F32", vec![32, 16], ramp(512, -4.0)),
        ("layers.0.weight", "F32", vec![16, 16], ramp(256, 1.0)),
        ("layers.0.bias", "F32", vec![16], f32s([0.0; 16])),
        ("norm.weight", "BF16", vec![16], [0x80, 0x3f].repeat(16)),
    ]
}
