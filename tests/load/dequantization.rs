//! Dequantization of whole tensors. What the numbers are is tested in `crates/kernels`, which knows no tensors.

use max_weights::buffer::{Buffer, PackedGroups, dequantize_groups, scale_blocks};
use max_weights::dtype::DType;
use max_weights::memory::Storage;
use max_weights::quant::CodeLayout;
use max_weights::workers::uninterrupted;

#[test]
fn an_empty_matrix_may_have_a_side_that_is_longer_than_can_be_counted() {
    const LONG: i64 = 1 << 61;
    let empty = |dtype: DType, shape: [i64; 2]| {
        let storage = Storage::of_bytes(&[]).expect("no memory");
        Buffer::contiguous_at(storage, 0, dtype, &shape).expect("no bytes")
    };
    for (shape, words, groups) in [([0, LONG], LONG / 8, LONG / 128), ([LONG, 0], 0, 0)] {
        let packed = empty(DType::Int32, [shape[0], words]);
        let scales = empty(DType::BFloat16, [shape[0], groups]);
        let parts = PackedGroups {
            layout: CodeLayout::Rows,
            bits: 4,
            shape,
            packed: &packed,
            scales: &scales,
            zero_points: None,
            zero_point_offset: 0,
            group_index: None,
            group_size: Some(128),
        };
        let made = dequantize_groups(&parts, DType::Float32, None, &uninterrupted).expect("an empty matrix");
        assert_eq!(made.shape(), shape);
        let data = empty(DType::Float8E4M3Fn, shape);
        let scales = empty(DType::Float32, shape.map(|side| side / 128));
        let made = scale_blocks(&data, &scales, (128, 128), (DType::Float32, false), None, &uninterrupted);
        assert_eq!(made.expect("an empty matrix").shape(), shape);
    }
}
