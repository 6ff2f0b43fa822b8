//! Rules of gguf.

use super::rules;

rules! {
    GGUF_ALIGNMENT = "gguf.alignment" Error {
        "",
        "",
        "",
    }
    GGUF_ALIGNMENT_SMALL = "gguf.alignment-small" Error {
        "",
        "",
        "",
    }
    GGUF_ALIGNMENT_TYPE = "gguf.alignment-type" Error {
        "",
        "",
        "",
    }
    GGUF_ARRAY_DEPTH = "gguf.array-depth" Error {
        "",
        "",
        "",
    }
    GGUF_ARRAY_LENGTH = "gguf.array-length" Error {
        "",
        "",
        "",
    }
    GGUF_BLOCK = "gguf.block" Error {
        "",
        "",
        "",
    }
    GGUF_BOOL = "gguf.bool" Error {
        "",
        "",
        "",
    }
    GGUF_DUPLICATE_KEY = "gguf.duplicate-key" Error {
        "",
        "",
        "",
    }
    GGUF_DUPLICATE_NAME = "gguf.duplicate-name" Error {
        "",
        "",
        "",
    }
    GGUF_FORK_TYPE = "gguf.fork-type" Error {
        "",
        "",
        "",
    }
    GGUF_HEADER_TOO_LONG = "gguf.header-too-long" Error {
        "",
        "",
        "",
    }
    GGUF_HEADS = "gguf.heads" Error {
        "",
        "",
        "",
    }
    GGUF_HOLE = "gguf.hole" Error {
        "",
        "",
        "",
    }
    GGUF_KEY_COUNT = "gguf.key-count" Error {
        "",
        "",
        "",
    }
    GGUF_KEY_EMPTY = "gguf.key-empty" Error {
        "",
        "",
        "",
    }
    GGUF_KEY_UTF8 = "gguf.key-utf8" Error {
        "",
        "",
        "",
    }
    GGUF_MAGIC = "gguf.magic" Error {
        "",
        "",
        "",
    }
    GGUF_MEMORY = "gguf.memory" Error {
        "",
        "",
        "",
    }
    GGUF_METADATA_ENTRIES = "gguf.metadata-entries" Error {
        "",
        "",
        "",
    }
    GGUF_MORE_FINDINGS = "gguf.more-findings" Error {
        "",
        "",
        "",
    }
    GGUF_NAME_EMPTY = "gguf.name-empty" Error {
        "",
        "",
        "",
    }
    GGUF_NAME_LONG = "gguf.name-long" Error {
        "",
        "",
        "",
    }
    GGUF_NAME_NUL = "gguf.name-nul" Error {
        "",
        "",
        "",
    }
    GGUF_NAME_UTF8 = "gguf.name-utf8" Error {
        "",
        "",
        "",
    }
    GGUF_OFFSET_UNALIGNED = "gguf.offset-unaligned" Error {
        "",
        "",
        "",
    }
    GGUF_ORDER = "gguf.order" Error {
        "",
        "",
        "",
    }
    GGUF_OUTSIDE = "gguf.outside" Error {
        "",
        "",
        "",
    }
    GGUF_OVERLAP = "gguf.overlap" Error {
        "",
        "",
        "",
    }
    GGUF_RANK = "gguf.rank" Error {
        "",
        "",
        "",
    }
    GGUF_REMOVED_TYPE = "gguf.removed-type" Error {
        "",
        "",
        "",
    }
    GGUF_SHAPE_OVERFLOW = "gguf.shape-overflow" Error {
        "",
        "",
        "",
    }
    GGUF_SIZE_OVERFLOW = "gguf.size-overflow" Error {
        "",
        "",
        "",
    }
    GGUF_SPLIT_COUNT = "gguf.split-count" Error {
        "",
        "",
        "",
    }
    GGUF_SPLIT_DUPLICATE = "gguf.split-duplicate" Error {
        "",
        "",
        "",
    }
    GGUF_SPLIT_KEYS = "gguf.split-keys" Error {
        "",
        "",
        "",
    }
    GGUF_SPLIT_MISSING = "gguf.split-missing" Error {
        "",
        "",
        "",
    }
    GGUF_SPLIT_NO = "gguf.split-no" Error {
        "",
        "",
        "",
    }
    GGUF_SPLIT_TOTAL = "gguf.split-total" Error {
        "",
        "",
        "",
    }
    GGUF_STRING_LENGTH = "gguf.string-length" Error {
        "",
        "",
        "",
    }
    GGUF_TENSOR_COUNT = "gguf.tensor-count" Error {
        "",
        "",
        "",
    }
    GGUF_TEXT_UTF8 = "gguf.text-utf8" Error {
        "",
        "",
        "",
    }
    GGUF_TOO_SHORT = "gguf.too-short" Error {
        "",
        "",
        "",
    }
    GGUF_TRAILING_DATA = "gguf.trailing-data" Error {
        "",
        "",
        "",
    }
    GGUF_TRUNCATED = "gguf.truncated" Error {
        "",
        "",
        "",
    }
    GGUF_UNKNOWN_TYPE = "gguf.unknown-type" Error {
        "",
        "",
        "",
    }
    GGUF_UNKNOWN_TYPES = "gguf.unknown-types" Error {
        "",
        "",
        "",
    }
    GGUF_VALUE_TYPE = "gguf.value-type" Error {
        "",
        "",
        "",
    }
    GGUF_VERSION = "gguf.version" Error {
        "",
        "",
        "",
    }
}
