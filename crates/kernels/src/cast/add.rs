//! Converts elements and adds an integer to them: the weights of norms, which some libraries store with 1 added.

use super::{CastOptions, cast};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// The elements that are converted at a time, on the stack.
const BLOCK: usize = 1024;

/// True if numbers can be added to elements of this dtype.
pub fn is_addable(dtype: DType) -> bool {
    matches!(dtype, DType::Float16 | DType::BFloat16 | DType::Float32 | DType::Float64)
}

/// [`cast`] with `amount` added to each element: in float32, or in float64 where the elements are float64, and rounded from there to `to`.
pub fn add(from: DType, to: DType, amount: i32, src: &[u8], dst: &mut [u8]) -> Result<()> {
    if !is_addable(from) {
        return Err(Error::CastPair(format!("nothing is added to elements of {from}")));
    }
    let wide = if from == DType::Float64 { DType::Float64 } else { DType::Float32 };
    let [from_bytes, wide_bytes, to_bytes] = [from, wide, to].map(|dtype| BLOCK * dtype.bits() / 8);
    let mut block = [0; BLOCK * 8];
    if src.len() / from_bytes != dst.len() / to_bytes {
        // It has the error for invalid arguments.
        return cast(from, to, src, dst, CastOptions::default());
    }
    for (src, dst) in src.chunks(from_bytes).zip(dst.chunks_mut(to_bytes)) {
        let block = &mut block[..src.len() / (from_bytes / BLOCK) * (wide_bytes / BLOCK)];
        cast(from, wide, src, block, CastOptions::default())?;
        if wide == DType::Float64 {
            for value in block.as_chunks_mut().0 {
                *value = (f64::from_le_bytes(*value) + f64::from(amount)).to_le_bytes();
            }
        } else {
            for value in block.as_chunks_mut().0 {
                *value = (f32::from_le_bytes(*value) + amount as f32).to_le_bytes();
            }
        }
        cast(wide, to, block, dst, CastOptions::default())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_half_and_bfloat_is_added_to_in_float32_and_rounded_once() {
        for dtype in [DType::Float16, DType::BFloat16] {
            let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
            for amount in [1, -1, 1 << 12] {
                let (mut wide, mut expected, mut found) = (vec![0; all.len() * 2], all.clone(), all.clone());
                cast(dtype, DType::Float32, &all, &mut wide, CastOptions::default()).expect("wide");
                for value in wide.as_chunks_mut().0 {
                    *value = (f32::from_le_bytes(*value) + amount as f32).to_le_bytes();
                }
                cast(DType::Float32, dtype, &wide, &mut expected, CastOptions::default()).expect("narrow");
                add(dtype, dtype, amount, &all, &mut found).expect("added");
                assert!(found == expected, "{dtype} + {amount}");
                let mut as_wide = wide.clone();
                add(dtype, DType::Float32, amount, &all, &mut as_wide).expect("added");
                assert!(as_wide == wide, "{dtype} + {amount} as float32 is not rounded to {dtype}");
            }
        }
    }

    #[test]
    fn wide_elements_keep_their_precision_and_others_are_refused() {
        let (value, mut sum) = (1e-12_f64, [0; 8]);
        add(DType::Float64, DType::Float64, -1, &value.to_le_bytes(), &mut sum).expect("added");
        assert_eq!(f64::from_le_bytes(sum).to_bits(), (value - 1.0).to_bits());
        let refused = add(DType::Int8, DType::Int8, 1, &[1], &mut [0]).expect_err("refused");
        assert!(refused.to_string().contains("nothing is added to elements of int8"), "{refused}");
        let short = add(DType::Float32, DType::Float32, 1, &[0; 8], &mut [0; 4]).expect_err("refused");
        assert!(short.to_string().contains("2 elements"), "{short}");
    }
}
