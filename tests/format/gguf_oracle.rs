//! Valid GGUF files of every version and byte order, made from a description that is then compared with what was read; and the real ones.

use std::path::PathBuf;

use crate::gguf_files::{ARRAY, Made, STRING};
use max_weights::format::gguf::{self, Gguf, GgufValue, ValueType};
use max_weights::format::{HeaderLimits, HeaderOptions, Parse, ParseProgress};
use max_weights::quant::Encoding;
use max_weights::tensor::Element;
use proptest::prelude::*;

fn parse(file: &[u8]) -> Gguf {
    match gguf::GgufParser::new(file.to_vec(), file.len() as u64, &HeaderOptions::default())
        .advance()
        .expect("a valid file")
    {
        ParseProgress::Done(gguf) => gguf,
        ParseProgress::Need(parts) => panic!("needs {parts:?} of {}", file.len()),
    }
}

/// A value to write.
#[derive(Debug, Clone, PartialEq)]
enum Given {
    Scalar(u32, u64),
    Text(String),
    Array(u32, Vec<Given>),
}

/// Bytes of the scalar types, by their numbers.
const SCALARS: [(u32, u32); 11] =
    [(0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4), (7, 1), (10, 8), (11, 8), (12, 8)];

impl Given {
    fn value_type(&self) -> u32 {
        match self {
            Self::Scalar(value_type, _) => *value_type,
            Self::Text(_) => STRING,
            Self::Array(..) => ARRAY,
        }
    }

    fn write(&self, made: Made) -> Made {
        match self {
            Self::Scalar(value_type, bits) => match bytes_of(*value_type) {
                1 => made.number((*bits as u8).to_le_bytes()),
                2 => made.number((*bits as u16).to_le_bytes()),
                4 => made.number((*bits as u32).to_le_bytes()),
                _ => made.number(bits.to_le_bytes()),
            },
            Self::Text(text) => made.string(text),
            Self::Array(element, values) => {
                let start = made.array(*element, values.len() as u64);
                values.iter().fold(start, |made, value| value.write(made))
            }
        }
    }

    /// What the reader should make of it; floats by their bits, so that NaN is compared, too.
    fn assert_is(&self, value: GgufValue<'_>) {
        match (self, value) {
            (Self::Scalar(value_type, bits), value) => {
                let (read_type, read) = match value {
                    GgufValue::U8(value) => (0, value.into()),
                    GgufValue::I8(value) => (1, u64::from(value as u8)),
                    GgufValue::U16(value) => (2, value.into()),
                    GgufValue::I16(value) => (3, u64::from(value as u16)),
                    GgufValue::U32(value) => (4, value.into()),
                    GgufValue::I32(value) => (5, u64::from(value as u32)),
                    GgufValue::F32(value) => (6, value.to_bits().into()),
                    GgufValue::Bool(value) => (7, value.into()),
                    GgufValue::U64(value) => (10, value),
                    GgufValue::I64(value) => (11, value as u64),
                    GgufValue::F64(value) => (12, value.to_bits()),
                    other => panic!("{other:?} for {self:?}"),
                };
                assert_eq!((read_type, read), (*value_type, *bits));
            }
            (Self::Text(text), GgufValue::String(read)) => assert_eq!(read, text),
            (Self::Array(element, values), GgufValue::Array(array)) => {
                assert_eq!(Some(array.element()), ValueType::from_id(*element));
                assert_eq!((array.len(), array.iter().len()), (values.len(), values.len()));
                let read: Vec<GgufValue<'_>> = array.iter().collect();
                assert_eq!(read.len(), values.len());
                values.iter().zip(read).for_each(|(given, value)| given.assert_is(value));
                if let Some(dtype) = array.element().dtype() {
                    let width = dtype.bytes().unwrap();
                    assert_eq!(array.bytes().len(), values.len() * width);
                    for (given, bytes) in values.iter().zip(array.bytes().chunks_exact(width)) {
                        let Self::Scalar(_, bits) = given else { panic!("{given:?} in an array of numbers") };
                        let mut expected = bits.to_le_bytes()[..width].to_vec();
                        if array.is_big_endian() {
                            expected.reverse();
                        }
                        assert_eq!(bytes, expected);
                    }
                }
            }
            (given, value) => panic!("{value:?} for {given:?}"),
        }
    }
}

fn bytes_of(value_type: u32) -> u32 {
    SCALARS.iter().find(|(id, _)| *id == value_type).expect("a scalar").1
}

fn scalar(value_type: u32) -> impl Strategy<Value = Given> {
    any::<u64>().prop_map(move |bits| {
        let bits = if value_type == 7 { bits & 1 } else { bits & (u64::MAX >> (64 - 8 * bytes_of(value_type))) };
        Given::Scalar(value_type, bits)
    })
}

fn given() -> impl Strategy<Value = Given> {
    let scalars = || prop::sample::select(SCALARS.map(|(id, _)| id).to_vec());
    let leaf = prop_oneof![
        scalars().prop_flat_map(scalar).boxed(),
        "\\PC{0,8}".prop_map(Given::Text).boxed(),
        scalars()
            .prop_flat_map(|id| prop::collection::vec(scalar(id), 0..5).prop_map(move |v| Given::Array(id, v)))
            .boxed(),
        prop::collection::vec("\\PC{0,8}".prop_map(Given::Text), 0..5).prop_map(|v| Given::Array(STRING, v)).boxed(),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        let array =
            inner.prop_filter_map("arrays hold arrays", |given| matches!(given, Given::Array(..)).then_some(given));
        prop::collection::vec(array, 0..4).prop_map(|v| Given::Array(ARRAY, v))
    })
}

/// A tensor to write, with its dimensions in the order of the file.
#[derive(Debug, Clone)]
struct GivenTensor {
    name: String,
    dims: Vec<u64>,
    /// Number, name, elements and bytes of a block.
    kind: (u32, &'static str, u64, u64),
}

const KINDS: [(u32, &str, u64, u64); 12] = [
    (0, "float32", 1, 4),
    (1, "float16", 1, 2),
    (2, "Q4_0", 32, 18),
    (8, "Q8_0", 32, 34),
    (14, "Q6_K", 256, 210),
    (24, "int8", 1, 1),
    (27, "int64", 1, 8),
    (28, "float64", 1, 8),
    (30, "bfloat16", 1, 2),
    (39, "MXFP4", 32, 17),
    (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
];

impl GivenTensor {
    fn bytes(&self) -> u64 {
        self.dims.iter().product::<u64>() / self.kind.2 * self.kind.3
    }
}

fn given_tensors() -> impl Strategy<Value = Vec<GivenTensor>> {
    let dims = prop::collection::vec(prop_oneof![8 => 1u64..5, 1 => Just(0)], 0..5);
    let kind = prop::sample::select(KINDS.to_vec());
    let tensor = ("\\PC{1,12}", dims, kind).prop_map(|(name, mut dims, kind)| {
        if dims.is_empty() && kind.2 > 1 {
            dims.push(1);
        }
        if let Some(first) = dims.first_mut() {
            *first *= kind.2;
        }
        GivenTensor { name, dims, kind }
    });
    prop::collection::vec(tensor, 0..8).prop_map(|mut tensors| {
        let mut seen = std::collections::HashSet::new();
        tensors.retain(|tensor| seen.insert(tensor.name.clone()));
        tensors
    })
}

fn given_keys() -> impl Strategy<Value = Vec<(String, Given)>> {
    prop::collection::vec(("[a-z.é]{1,8}", given()), 0..8).prop_map(|mut keys| {
        let mut seen = std::collections::HashSet::new();
        keys.retain(|(key, _)| seen.insert(key.clone()));
        keys
    })
}

/// Writes a file, and gives the offsets of its tensors with it.
fn write(
    (version, big_endian): (u32, bool),
    keys: &[(String, Given)],
    tensors: &[GivenTensor],
    alignment: u32,
) -> (Vec<u8>, Vec<u64>, u64) {
    let mut made = Made::of(version, big_endian, tensors.len() as u64, keys.len() as u64 + 1);
    for (i, (key, value)) in keys.iter().enumerate() {
        if i == keys.len() / 2 {
            made = made.key("general.alignment", 4).u32(alignment);
        }
        made = value.write(made.key(key, value.value_type()));
    }
    if keys.is_empty() {
        made = made.key("general.alignment", 4).u32(alignment);
    }
    let mut offset = 0;
    let mut offsets = Vec::new();
    for tensor in tensors {
        made = made.tensor(&tensor.name, &tensor.dims, tensor.kind.0, offset);
        offsets.push(offset);
        offset += tensor.bytes().next_multiple_of(alignment.into());
    }
    let made = made.pad(alignment as usize);
    let data_start = made.len();
    (made.data(offset as usize).bytes, offsets, data_start)
}

fn assert_reads(
    form: (u32, bool),
    keys: &[(String, Given)],
    tensors: &[GivenTensor],
    alignment: u32,
) -> Result<(), TestCaseError> {
    let (file, offsets, data_start) = write(form, keys, tensors, alignment);
    let read = parse(&file);
    prop_assert_eq!((read.version, read.big_endian, read.alignment), (form.0, form.1, alignment.into()));
    prop_assert_eq!(read.header.data_start, data_start);
    prop_assert_eq!(&read.header.findings, &[]);
    prop_assert_eq!(read.split, None);
    let table = &read.header.tensors;
    prop_assert_eq!(table.len(), tensors.len());
    for (given, offset) in tensors.iter().zip(offsets) {
        let info = table.iter().find(|info| info.name == given.name).expect("the tensor");
        let shape: Vec<u64> = given.dims.iter().rev().copied().collect();
        prop_assert_eq!((info.shape, info.element.to_string()), (&shape[..], given.kind.1.to_string()));
        prop_assert_eq!((info.span.start(), info.span.len()), (data_start + offset, given.bytes()));
        if let Some(bytes) = info.byte_shape() {
            prop_assert_eq!(bytes.iter().product::<u64>(), given.bytes());
        }
    }
    prop_assert!(table.iter().map(|info| info.span.start()).is_sorted());

    let metadata = &read.metadata;
    prop_assert_eq!(metadata.len(), keys.len() + 1);
    let in_order: Vec<&str> = metadata.keys().filter(|key| *key != "general.alignment").collect();
    prop_assert_eq!(in_order, keys.iter().map(|(key, _)| key).collect::<Vec<_>>());
    for (key, given) in keys {
        given.assert_is(metadata.get(key).expect("the key"));
    }
    prop_assert_eq!(metadata.iter().count(), keys.len() + 1);
    prop_assert!(metadata.get("no such key").is_none() && !metadata.contains("no such key"));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_is_read(
        keys in given_keys(),
        tensors in given_tensors(),
        version in 1u32..4,
        big_endian: bool,
        alignment in prop::sample::select(vec![8u32, 32, 64, 4096]),
    ) {
        assert_reads((version, big_endian), &keys, &tensors, alignment)?;
    }

    #[test]
    fn every_prefix_asks_for_more_until_the_header_is_complete(
        keys in given_keys(), tensors in given_tensors(), version in 1u32..4, big_endian: bool,
    ) {
        let (file, _, _) = write((version, big_endian), &keys, &tensors, 32);
        let whole = format!("{:?}", parse(&file));
        let mut complete = false;
        for len in 0..=file.len() {
            let options = HeaderOptions::default();
            let mut parser = gguf::GgufParser::new(file[..len].to_vec(), file.len() as u64, &options);
            match parser.advance().expect("a valid file") {
                ParseProgress::Need(parts) => {
                    prop_assert!(!complete, "{} bytes were enough", len);
                    prop_assert_eq!((parts.len(), parts[0].offset), (1, len as u64));
                    prop_assert!(!parts[0].bytes.is_empty() && len + parts[0].bytes.len() <= file.len());
                }
                ParseProgress::Done(gguf) => {
                    if !complete {
                        prop_assert_eq!(format!("{gguf:?}"), whole.as_str());
                    }
                    complete = true;
                }
            }
        }
        prop_assert!(complete);
    }

    #[test]
    fn a_file_cut_short_anywhere_is_an_error_and_damage_never_panics(
        keys in given_keys(), tensors in given_tensors(), cut: prop::sample::Index, at: prop::sample::Index, byte: u8,
    ) {
        let (mut file, _, data_start) = write((3, false), &keys, &tensors, 32);
        let cut = cut.index(file.len());
        let options = HeaderOptions::default();
        let mut parser = gguf::GgufParser::new(file[..cut].to_vec(), cut as u64, &options);
        let read = parser.advance();
        let end = tensors.iter().map(GivenTensor::bytes).sum::<u64>();
        if end > 0 && (cut as u64) < data_start {
            let error = read.expect_err("the data is missing");
            prop_assert!(error.diagnostic().is_some_and(|fault| !fault.help.is_empty()), "{}", error);
        }
        let at = at.index(file.len());
        file[at] = byte;
        let mut parser = gguf::GgufParser::new(file.clone(), file.len() as u64, &options);
        if let Ok(ParseProgress::Done(gguf)) = parser.advance() {
            prop_assert!(gguf.metadata.iter().count() == gguf.metadata.len());
            for info in gguf.header.tensors.iter() {
                prop_assert!(info.span.end() <= file.len() as u64);
            }
        }
    }
}

#[test]
fn reading_fetches_each_byte_once_and_little_more_than_the_header() {
    let strings = 262_144;
    let mut made = Made::new(1, 1).key("tokenizer.ggml.tokens", ARRAY).array(STRING, strings);
    for i in 0..strings {
        made = made.string(format!("token {i}"));
    }
    let header = made.tensor("weight", &[1024, 1024], 0, 0);
    let header_len = header.len();
    let file = header.pad(32).data(4 << 20).bytes;

    let first = file[..64 << 10].to_vec();
    let options = HeaderOptions::default();
    let (mut fetched, mut batches) = (first.len(), 0);
    let mut parser = gguf::GgufParser::new(first, file.len() as u64, &options);
    let read = loop {
        match parser.advance().expect("a valid file") {
            ParseProgress::Done(gguf) => break gguf,
            ParseProgress::Need(parts) => {
                for part in parts {
                    assert_eq!(part.offset, fetched as u64, "bytes are asked for once, in order");
                    part.bytes.copy_from_slice(&file[fetched..][..part.bytes.len()]);
                    fetched += part.bytes.len();
                }
                batches += 1;
            }
        }
    };
    assert!(fetched as u64 <= header_len + header_len / 2 + 1, "{fetched} bytes for a header of {header_len}");
    assert!(batches < 12, "{batches} batches");
    let Some(GgufValue::Array(tokens)) = read.metadata.get("tokenizer.ggml.tokens") else { panic!("no tokens") };
    assert_eq!((tokens.element(), tokens.len()), (ValueType::String, 262_144));
    assert_eq!(tokens.iter().nth(200_000), Some(GgufValue::String("token 200000")));
    // Only the metadata is kept, with a little slack.
    assert!(read.metadata.header().capacity() as u64 <= header_len + header_len / 4);
    assert_eq!(read.header.tensors.get(0).span.end(), file.len() as u64);
}

#[test]
fn a_header_longer_than_the_limit_is_refused_before_it_is_fetched() {
    let file = Made::new(0, 1).key("text", STRING).string(vec![b'a'; 100_000]).bytes;
    let options = HeaderOptions {
        limits: HeaderLimits { header_bytes: 50_000, ..HeaderLimits::default() },
        ..HeaderOptions::default()
    };
    let mut parser = gguf::GgufParser::new(file[..1000].to_vec(), file.len() as u64, &options);
    assert_eq!(
        parser.advance().expect_err("nothing more is asked for").diagnostic().unwrap().rule.id,
        "gguf.header-too-long"
    );
}

/// The real files, which `make test` fetches.
fn real(name: &str) -> Vec<u8> {
    let given = std::env::var_os("MAX_WEIGHTS_MODELS").map(PathBuf::from);
    let folder = given.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".models"));
    let path = folder.join(name);
    std::fs::read(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; `make test` fetches the real models (tools/get_models.py DIR --derive)", path.display())
    })
}

#[test]
fn the_real_smollm2_file() {
    let file = real("smollm2-135m.Q4_1.gguf");
    let read = parse(&file);
    assert_eq!((read.version, read.big_endian, read.alignment, read.split), (3, false, 32, None));
    assert_eq!(read.header.findings, []);
    let metadata = &read.metadata;
    assert_eq!(metadata.get("general.architecture"), Some(GgufValue::String("llama")));
    let Some(GgufValue::Array(tokens)) = metadata.get("tokenizer.ggml.tokens") else { panic!("no tokens") };
    assert_eq!((tokens.element(), tokens.len(), tokens.iter().count()), (ValueType::String, 49_152, 49_152));
    assert!(tokens.iter().all(|token| token.as_str().is_some()));
    let table = &read.header.tensors;
    let count = |element| table.iter().filter(|info| info.element == element).count();
    let f32 = Element::Plain(max_weights::dtype::DType::Float32);
    assert_eq!(count(Element::Packed(Encoding::Q4_1)), 210);
    assert_eq!((count(Element::Packed(Encoding::Q8_0)), count(f32), table.len()), (1, 61, 272));
    let info = table.iter().find(|info| info.name == "blk.0.attn_k.weight").expect("the tensor");
    assert_eq!((info.shape, info.byte_shape()), (&[192, 576][..], Some(vec![192, 576 / 32 * 20])));
    let last = table.iter().last().expect("a tensor");
    assert_eq!(last.span.end().next_multiple_of(32), file.len() as u64);
}

#[test]
fn the_real_file_of_every_packed_type() {
    let file = real("derived/minilm-ffn-allquants.gguf");
    let read = parse(&file);
    assert_eq!(read.header.findings, []);
    let mut names: Vec<String> = read.header.tensors.iter().map(|info| info.element.to_string()).collect();
    names.sort_unstable();
    #[rustfmt::skip]
    let expected = [
        "IQ1_M", "IQ1_S", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ3_S", "IQ3_XXS", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4", "Q1_0", "Q2_K", "Q3_K",
        "Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0", "TQ1_0", "TQ2_0",
    ];
    assert_eq!(names, expected);
    assert!(read.header.tensors.iter().all(|info| info.byte_shape().is_some()));
}
