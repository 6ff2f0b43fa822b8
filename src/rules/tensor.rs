//! Rules about tensors, conversions and memory, for all formats.

use super::{MADE, MEMORY_HELP, rules};

rules! {
    CAST_PAIR "MW-OP-001" "cast.pair" Error:
        "one of these dtypes cannot be converted to the other";
        "complex numbers have no real value";
        "complex numbers convert only to themselves; take the real part first";
    CAST_SCALE "MW-OP-002" "cast.scale" Error:
        "blocks of these dtypes cannot be scaled";
        "the product is computed in float32, in which values of the dtype are not exact";
        "cast to float32 first and multiply there";
    INTERRUPTED "MW-OP-003" "interrupted" Error:
        "the caller asked to stop";
        "Ctrl-C was pressed, or a signal arrived";
        "start it again";
    MEMORY "MW-OP-004" "memory" Error:
        "the system does not have the requested memory";
        "the tensor, or the header, is larger than the memory available to the process";
        "close what is not needed, or read fewer tensors at a time";
    MEMORY_BUDGET "MW-OP-005" "memory.budget" Error:
        "the contents of the file would exceed the memory limit";
        MADE;
        MEMORY_HELP;
    QUANTIZATION_ENCODE "MW-OP-006" "quantization.encode" Error:
        "blocks of this encoding can be decoded, but not encoded";
        "good scales for it need a search over importance data";
        "quantize to Q8_0, Q5_1, Q5_0, Q4_1 or Q4_0";
    QUANTIZATION_TARGET "MW-OP-007" "quantization.target" Error:
        "blocks cannot be decoded to this dtype";
        "that would hide a second rounding";
        "decode to float32, then cast";
    SPAN_OUTSIDE "MW-OP-008" "span.outside" Error:
        "a range of bytes reaches beyond the end of the file";
        "the file became shorter while its header was read, or its header is wrong in a way that no rule of its format covers";
        super::FETCH_AGAIN;
    TENSOR_DIGEST "MW-OP-009" "tensor.digest" Error:
        "a tensor does not have the expected digest";
        "the file is damaged, or it is not the version of the model that the digests were made from";
        "fetch the file again; if the change is intended, make new digests";
    TENSOR_UNKNOWN_TYPE "MW-OP-010" "tensor.unknown-type" Error:
        "the elements of the tensor are of an unknown type";
        "the file was written by a fork, or by a newer version of its library";
        "its bytes can be read and copied unchanged";
}
