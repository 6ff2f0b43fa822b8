//! Rules of tensor.

use super::rules;

rules! {
    SPAN_OUTSIDE = "span.outside" Error {
        "",
        "",
        "",
    }
    TABLE_FULL = "table.full" Error {
        "",
        "",
        "",
    }
    TENSOR_UNKNOWN_TYPE = "tensor.unknown-type" Error {
        "",
        "",
        "",
    }
    CAST_PAIR = "cast.pair" Error {
        "",
        "",
        "",
    }
    CAST_SCALE = "cast.scale" Error {
        "",
        "",
        "",
    }
    QUANTIZATION_ENCODE = "quantization.encode" Error {
        "",
        "",
        "",
    }
    QUANTIZATION_TARGET = "quantization.target" Error {
        "",
        "",
        "",
    }
    MEMORY = "memory" Error {
        "",
        "",
        "",
    }
    INTERRUPTED = "interrupted" Error {
        "",
        "",
        "",
    }
    MEMORY_BUDGET = "memory.budget" Error {
        "",
        "",
        "",
    }
}
