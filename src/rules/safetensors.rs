//! Rules of safetensors.

use super::rules;

rules! {
    SAFETENSORS_AFTER_JSON = "safetensors.after-json" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_DTYPE = "safetensors.dtype" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_DUPLICATE_FIELD = "safetensors.duplicate-field" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_DUPLICATE_METADATA = "safetensors.duplicate-metadata" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_DUPLICATE_METADATA_KEY = "safetensors.duplicate-metadata-key" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_DUPLICATE_NAME = "safetensors.duplicate-name" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_ENTRY = "safetensors.entry" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_HEADER_EMPTY = "safetensors.header-empty" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_HEADER_START = "safetensors.header-start" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_HEADER_TOO_LONG = "safetensors.header-too-long" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_HOLE = "safetensors.hole" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_JSON = "safetensors.json" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_LEADING_SPACE = "safetensors.leading-space" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_MEMORY = "safetensors.memory" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_METADATA = "safetensors.metadata" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_METADATA_ENTRIES = "safetensors.metadata-entries" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_METADATA_NULL = "safetensors.metadata-null" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_MISSING_FIELD = "safetensors.missing-field" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_MORE_FINDINGS = "safetensors.more-findings" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_NAME_EMPTY = "safetensors.name-empty" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_NAME_NUL = "safetensors.name-nul" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_OFFSETS = "safetensors.offsets" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_OUTSIDE = "safetensors.outside" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_OVERLAP = "safetensors.overlap" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_PADDING = "safetensors.padding" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_RANK = "safetensors.rank" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_SHAPE = "safetensors.shape" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_SHAPE_OVERFLOW = "safetensors.shape-overflow" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_SIZE = "safetensors.size" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_SUB_BYTE = "safetensors.sub-byte" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_TOO_SHORT = "safetensors.too-short" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_TRAILING_DATA = "safetensors.trailing-data" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_TRUNCATED = "safetensors.truncated" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_UNKNOWN_DTYPES = "safetensors.unknown-dtypes" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_UNKNOWN_FIELD = "safetensors.unknown-field" Error {
        "",
        "",
        "",
    }
    SAFETENSORS_UTF8 = "safetensors.utf8" Error {
        "",
        "",
        "",
    }
}
