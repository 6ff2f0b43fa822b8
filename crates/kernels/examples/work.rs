//! One conversion of so many elements at a level, so many times, and nothing else, for what counts instructions: `work neon bfloat16 float32 4096 2`, or
//! `work scalar Q4_K float32 4096 2`.

use std::hint::black_box;

use max_weights_kernels::cast::{CastOptions, cast_at};
use max_weights_kernels::quant::dequantize_at;
use max_weights_kernels::{DType, Encoding, Level};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [level, from, to, elements, times] = &arguments[..] else {
        return Err("LEVEL, FROM, TO, a number of elements, and how often".into());
    };
    let dtype = |name: &str| DType::all().find(|dtype| dtype.name() == name);
    let level = Level::available().find(|other| other.name() == level).ok_or("no such level here")?;
    let to = dtype(to).ok_or("no such dtype")?;
    let (elements, times): (usize, u32) = (elements.parse()?, times.parse()?);
    let packed = Encoding::from_name(from);
    let bytes = match (packed, dtype(from)) {
        (Some(encoding), _) => elements / encoding.elements_per_block() * encoding.bytes_per_block(),
        (None, Some(from)) => elements * from.bits() / 8,
        (None, None) => return Err("no such dtype or encoding".into()),
    };
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8 & 0xbf // of ordinary size in every format
    };
    let first: Vec<u8> = (0..256).map(|_| next()).collect();
    let mut src = vec![0; bytes];
    for part in src.chunks_mut(first.len()) {
        part.copy_from_slice(&first[..part.len()]);
    }
    let mut dst = vec![0; elements * to.bits() / 8];
    for _ in 0..times {
        match (packed, dtype(from)) {
            (Some(encoding), _) => {
                dequantize_at(level, encoding, black_box(&src), to, black_box(&mut dst), false)?;
            }
            (None, Some(from)) => {
                cast_at(level, from, to, black_box(&src), black_box(&mut dst), CastOptions::default())?;
            }
            (None, None) => {}
        }
    }
    black_box(&dst);
    Ok(())
}
