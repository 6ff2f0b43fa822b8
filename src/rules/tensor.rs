//! Rules about tensors, conversions and memory, whatever the format.

use super::{MADE, MEMORY_CURE, rules};

rules! {
    CAST_PAIR "MW-OP-001" "cast.pair" Error:
        "one of these dtypes is not converted to the other";
        "complex numbers have no value among the real ones";
        "complex numbers convert only to themselves; take the real part first";
    CAST_SCALE "MW-OP-002" "cast.scale" Error:
        "blocks of these dtypes are not scaled";
        "the product is computed in float32, in which values of the dtype are not exact";
        "cast to float32 first and multiply there";
    INTERRUPTED "MW-OP-003" "interrupted" Error:
        "the caller asked to stop";
        "Ctrl-C was pressed, or a signal came";
        "start it again";
    MEMORY "MW-OP-004" "memory" Error:
        "the system has no memory for what is asked";
        "the tensor, or the header, is larger than the memory that is left to the process";
        "close what is not needed, or read fewer tensors at a time";
    MEMORY_BUDGET "MW-OP-005" "memory.budget" Error:
        "what the file says would take more memory than it may";
        MADE;
        MEMORY_CURE;
    QUANTIZATION_ENCODE "MW-OP-006" "quantization.encode" Error:
        "blocks of this encoding can be decoded, but not made";
        "good values of its scales need a search over importance data";
        "quantise to Q8_0, Q5_1, Q5_0, Q4_1 or Q4_0";
    QUANTIZATION_TARGET "MW-OP-007" "quantization.target" Error:
        "blocks are not decoded to this dtype";
        "a second rounding would be hidden in it";
        "decode to float32, then cast";
    SPAN_OUTSIDE "MW-OP-008" "span.outside" Error:
        "a range of bytes reaches beyond the end of the file";
        "the file became shorter while its header was read, or its header lies in a way that no rule of its format names";
        super::FETCH_AGAIN;
    TENSOR_DIGEST "MW-OP-009" "tensor.digest" Error:
        "a tensor has another digest than was expected";
        "the file is damaged, or it is another version of the model than the one that the digests were taken of";
        "fetch the file again; if the change is meant, take the digests anew";
    TENSOR_UNKNOWN_TYPE "MW-OP-010" "tensor.unknown-type" Error:
        "the elements of the tensor are of a type that is not known here";
        "the file was written by a fork, or by a newer version of its library";
        "its bytes can be read and copied as they are";
}
