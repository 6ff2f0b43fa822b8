//! Files of one tensor `t`, and statistics by the plainest loops.

#![allow(dead_code)] // each test uses its part
#![allow(clippy::unwrap_used, clippy::float_cmp)] // helpers of tests fail as tests do

use std::sync::Arc;

use max_weights::check::{ExactNumber, Statistics};
use max_weights::checkpoint::{Checkpoint, OpenOptions};
use max_weights::quant::Encoding;
use max_weights::source::InMemory;

use crate::gguf_files::Made;
use crate::zip_files::{Part, Zip};

/// A name, and the bytes of the file.
pub(crate) type File = (&'static str, Vec<u8>);

pub(crate) fn opened((name, bytes): File) -> Checkpoint {
    let options = OpenOptions::default().strict(false);
    Checkpoint::open_sources(vec![Arc::new(InMemory::new(name, bytes))], &options).unwrap()
}

/// Bytes without any order, the same each time.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| word().to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

/// The tensor begins `pad` bytes after a multiple of 8.
pub(crate) fn safetensors(dtype: &str, shape: &[usize], bytes: &[u8], pad: usize) -> File {
    let end = pad + bytes.len();
    let tensor = format!(r#""t":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{pad},{end}]}}"#);
    let header = format!(r#"{{"pad":{{"dtype":"U8","shape":[{pad}],"data_offsets":[0,{pad}]}},{tensor}}}"#);
    let header = format!("{header:width$}", width = header.len().next_multiple_of(8));
    let start = (header.len() as u64).to_le_bytes();
    ("model.safetensors", [&start[..], header.as_bytes(), &vec![0; pad], bytes].concat())
}

pub(crate) fn gguf(encoding: Encoding, elements: usize, bytes: &[u8], big_endian: bool) -> File {
    let made = Made::of(3, big_endian, 1, 0).tensor("t", &[elements as u64], encoding.ggml(), 0);
    ("model.gguf", made.pad(32).raw(bytes).pad(32).bytes)
}

/// A PyTorch file of one tensor of float32.
pub(crate) struct Torch<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) shape: &'a [u64],
    pub(crate) strides: &'a [u64],
    pub(crate) offset: u64,
    pub(crate) deflated: bool,
    pub(crate) big_endian: bool,
}

impl<'a> Torch<'a> {
    pub(crate) fn floats(values: &'a [f32]) -> Self {
        Self { values, shape: &[], strides: &[], offset: 0, deflated: false, big_endian: false }
    }

    pub(crate) fn file(&self) -> File {
        let number = |value: u64| [b"\x8a\x09".as_slice(), &value.to_le_bytes(), b"\0"].concat();
        let numbers = |values: &[u64]| {
            [b"(".to_vec(), values.iter().flat_map(|value| number(*value)).collect(), b"t".to_vec()].concat()
        };
        let storage = b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpu".to_vec();
        let pickle = [
            b"\x80\x02}U\x01tctorch._utils\n_rebuild_tensor_v2\n(".to_vec(),
            [storage, number(self.values.len() as u64), b"tQ".to_vec()].concat(),
            [number(self.offset), numbers(self.shape), numbers(self.strides), b"\x89}tRs.".to_vec()].concat(),
        ];
        let bytes = |value: &f32| if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
        let data: Vec<u8> = self.values.iter().flat_map(bytes).collect();
        let part = if self.deflated { Part::deflated } else { Part::stored };
        let order = if self.big_endian { "big" } else { "little" };
        let parts = [
            Part::stored("archive/data.pkl", pickle.concat()),
            Part::stored("archive/byteorder", order),
            part("archive/data/0".to_owned(), data),
            Part::stored("archive/version", "3\n"),
        ];
        ("model.pt", Zip::new(&parts).bytes)
    }
}

/// Statistics by obviously correct loops.
#[derive(Debug)]
pub(crate) struct Naive {
    count: usize,
    zeros: usize,
    nans: usize,
    infinities: usize,
    finite: Vec<f64>,
}

impl Naive {
    pub(crate) fn of(values: &[f64]) -> Self {
        let number = |is: fn(&f64) -> bool| values.iter().filter(|value| is(value)).count();
        Self {
            count: values.len(),
            zeros: number(|value| *value == 0.0),
            nans: number(|value| value.is_nan()),
            infinities: number(|value| value.is_infinite()),
            finite: values.iter().copied().filter(|value| value.is_finite()).collect(),
        }
    }

    #[track_caller]
    pub(crate) fn assert_equals(&self, found: &Statistics, bins: usize, what: &str) {
        let counts = [self.count, self.zeros, self.nans, self.infinities].map(|count| count as u64);
        assert_eq!([found.count, found.zeros, found.nans, found.infinities], counts, "{what}: {found:?}");
        let low = self.finite.iter().copied().reduce(f64::min);
        let high = self.finite.iter().copied().reduce(f64::max);
        assert_eq!(
            (found.minimum.map(ExactNumber::to_f64), found.maximum.map(ExactNumber::to_f64)),
            (low, high),
            "{what}"
        );
        let (Some(low), Some(high)) = (low, high) else { return };
        let largest = low.abs().max(high.abs());
        let scaled = || self.finite.iter().map(|value| value / largest);
        let number = self.finite.len() as f64;
        let mean = if largest == 0.0 { 0.0 } else { scaled().sum::<f64>() / number };
        let squares = scaled().map(|value| (value - mean) * (value - mean)).sum::<f64>();
        let deviation = if largest == 0.0 { 0.0 } else { (squares / number).sqrt() };
        let near = |found: Option<f64>, expected: f64| {
            let found = if largest == 0.0 { found.unwrap() } else { found.unwrap() / largest };
            (found - expected).abs() < 1e-12
        };
        assert!(near(found.mean, mean), "{what}: {found:?}, {mean}");
        assert!(near(found.deviation, deviation), "{what}: {found:?}, {deviation}");
        if bins == 0 {
            assert!(found.bins.is_empty(), "{what}");
            return;
        }
        assert_eq!(found.bins.iter().map(|bin| bin.count).sum::<u64>(), self.finite.len() as u64, "{what}");
        for (i, bin) in found.bins.iter().enumerate() {
            let (from, to) = (bin.low.to_f64(), bin.high.to_f64());
            let last = i + 1 == found.bins.len();
            let inside = |value: &&f64| **value >= from && (**value < to || last || from == to && **value == from);
            assert_eq!(bin.count, self.finite.iter().filter(inside).count() as u64, "{what}: {bin:?}");
        }
        let edges = (found.bins[0].low.to_f64(), found.bins[found.bins.len() - 1].high.to_f64());
        assert_eq!(edges, (low, high), "{what}");
    }
}
