//! Rules of the values of tensors, which need a read of every byte.

use super::rules;

const READ_AGAIN: &str =
    "fetch the file again, and compare its SHA-256 with that of the source; if it is the same, ask its author";
const TRAINED: &str = "training diverged, a conversion overflowed, or the bytes were damaged in transit";
const LEFT: &str = "the part is unused, was masked or pruned, or was never reached by the training meant to fill it";
const MEANT: &str = "check whether the model is meant to have it";

rules! {
    VALUES_BOOL "MW-VA-001" "values.bool" Warning: "a tensor of bools has bytes other than 0 and 1"; "the bytes belong to another dtype, or were damaged; readers interpret them differently"; "save the tensor again as bools";
    VALUES_CONSTANT "MW-VA-002" "values.constant" Note: "all elements of a tensor are the same"; LEFT; MEANT;
    VALUES_DEAD_ROWS "MW-VA-003" "values.dead-rows" Note: "whole rows of a matrix are zero, or a single number"; "units never fire, tokens were never trained, or rows were added as padding"; MEANT;
    VALUES_DUPLICATE "MW-VA-004" "values.duplicate" Note: "tensors of different names have the same bytes"; "tied weights were saved twice, every layer has the same buffers, or layers were copied"; "save tied weights once: the file is larger than it has to be";
    VALUES_INFINITY "MW-VA-005" "values.infinity" Warning: "a tensor has infinite values"; TRAINED; READ_AGAIN;
    VALUES_MASK "MW-VA-006" "values.mask" Note: "a mask, or an attention bias, has infinite values"; "minus infinity hides positions from attention"; "nothing, if it is a mask";
    VALUES_NAN "MW-VA-007" "values.nan" Warning: "a tensor has values that are not a number"; TRAINED; READ_AGAIN;
    VALUES_SATURATED "MW-VA-008" "values.saturated" Warning: "many values of an eight-bit float are the largest or the smallest possible"; "values were converted without a scale, or with one that is too small, and clipped"; "quantize again from the source, with a scale for each tensor, channel or block";
    VALUES_SCALE "MW-VA-009" "values.scale" Warning: "scales of a quantized weight are negative, zero throughout, NaN, infinite or absurdly large"; "quantization went wrong, or the scales were damaged or mixed up"; "quantize again from the source";
    VALUES_SCALE_ZERO "MW-VA-010" "values.scale-zero" Note: "some scales of a quantized weight are zero"; "the weights under them were zero when they were quantized"; "nothing, if those weights are meant to be zero: they are, whatever their codes";
    VALUES_ZERO "MW-VA-011" "values.zero" Note: "all elements of a tensor are zero"; LEFT; MEANT;
}
