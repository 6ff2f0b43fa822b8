//! For all bytes and lengths, quantization returns values, or an error that names the mismatch.

use max_weights_kernels::Error;
use max_weights_kernels::dtype::DType;
use max_weights_kernels::quant::{Encoding, dequantize, elements, quantize};
use proptest::prelude::*;

const TARGETS: [DType; 3] = [DType::Float32, DType::Float16, DType::BFloat16];
const WRITABLE: [Encoding; 5] = [Encoding::Q4_0, Encoding::Q4_1, Encoding::Q5_0, Encoding::Q5_1, Encoding::Q8_0];

fn any_encoding() -> impl Strategy<Value = Encoding> {
    prop::sample::select(Encoding::all().collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn any_bytes_decode_and_only_whole_blocks_do(
        encoding in any_encoding(),
        bytes in prop::collection::vec(any::<u8>(), 0..900),
        to in prop::sample::select(&TARGETS[..]),
        extra in -3_isize..4,
        whole in any::<bool>(),
    ) {
        let per_block = encoding.bytes_per_block();
        let bytes = if whole { &bytes[..bytes.len() / per_block * per_block] } else { &bytes[..] };
        let size = bytes.len() / per_block * encoding.elements_per_block() * to.bits() / 8;
        let mut out = vec![0xa5; size.saturating_add_signed(extra)];
        let fits = bytes.len().is_multiple_of(per_block) && out.len() == size;
        match dequantize(encoding, bytes, to, &mut out, false) {
            Ok(()) => prop_assert!(fits),
            Err(error) => {
                prop_assert!(!fits);
                prop_assert!(matches!(error, Error::Argument(_)));
                prop_assert!(error.to_string().contains(encoding.name()));
                prop_assert!(out.iter().all(|byte| *byte == 0xa5), "an error leaves the output alone");
            }
        }
    }

    #[test]
    fn any_values_encode_and_only_whole_blocks_do(
        encoding in prop::sample::select(&WRITABLE[..]),
        values in prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 0..200),
        extra in -2_isize..3,
        whole in any::<bool>(),
    ) {
        let values = if whole { &values[..values.len() / 32 * 32] } else { &values[..] };
        let size = values.len() / 32 * encoding.bytes_per_block();
        let mut out = vec![0; size.saturating_add_signed(extra)];
        let fits = values.len().is_multiple_of(32) && out.len() == size;
        prop_assert_eq!(quantize(encoding, values, &mut out).is_ok(), fits);
    }

    #[test]
    fn a_value_comes_back_within_a_step(
        encoding in prop::sample::select(&WRITABLE[..]),
        values in prop::collection::vec(-1000_f32..1000.0, 32),
    ) {
        let mut block = vec![0; encoding.bytes_per_block()];
        quantize(encoding, &values, &mut block).expect("one block");
        let mut out = [[0; 4]; 32];
        dequantize(encoding, &block, DType::Float32, out.as_flattened_mut(), false).expect("one block");
        let (least, greatest) = values.iter().fold((f32::MAX, f32::MIN), |(a, b), value| (a.min(*value), b.max(*value)));
        let extreme = greatest.abs().max(least.abs());
        // The last term is the rounding of the scale and the minimum to f16.
        let step = match encoding {
            Encoding::Q8_0 => extreme / 127.0 * 0.5,
            Encoding::Q4_0 => extreme / 8.0,
            Encoding::Q5_0 => extreme / 16.0,
            Encoding::Q4_1 => (greatest - least) / 15.0 * 0.5,
            _ => (greatest - least) / 31.0 * 0.5,
        } + extreme / 512.0;
        for (value, back) in values.iter().zip(out.map(f32::from_ne_bytes)) {
            prop_assert!((value - back).abs() <= step, "{value} came back as {back}, steps of {step}");
        }
    }
}

#[test]
fn no_blocks_are_no_elements() {
    for encoding in Encoding::all() {
        assert_eq!(elements(encoding, 0).expect("no blocks"), 0);
        dequantize(encoding, &[], DType::Float32, &mut [], false).expect("nothing to do");
    }
}

#[test]
fn a_size_that_overflows_is_an_error() {
    // The largest multiple of the block that a usize holds has more elements than one does.
    let bytes = usize::MAX / 50 * 50;
    assert!(elements(Encoding::IQ1_S, bytes).is_err());
}

#[test]
fn other_targets_and_other_encodings_are_named_as_unsupported() {
    let refused = dequantize(Encoding::Q4_0, &[0; 18], DType::Int8, &mut [0; 32], false).expect_err("not a float");
    assert!(matches!(refused, Error::QuantizationTarget(_)), "{refused}");
    assert!(refused.to_string().contains("Q4_0") && refused.to_string().contains("int8"), "{refused}");
    for encoding in Encoding::all().filter(|encoding| !WRITABLE.contains(encoding)) {
        let values = vec![0.0; encoding.elements_per_block()];
        let refused = quantize(encoding, &values, &mut vec![0; encoding.bytes_per_block()]).expect_err("no quantizer");
        assert!(matches!(refused, Error::QuantizationEncode(_)), "{refused}");
    }
}
