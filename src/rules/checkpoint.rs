//! Rules of checkpoint.

use super::rules;

rules! {
    INDEX_DUPLICATE_NAME = "index.duplicate-name" Error {
        "",
        "",
        "",
    }
    INDEX_DUPLICATE_TENSOR = "index.duplicate-tensor" Error {
        "",
        "",
        "",
    }
    INDEX_JSON = "index.json" Error {
        "",
        "",
        "",
    }
    INDEX_METADATA = "index.metadata" Error {
        "",
        "",
        "",
    }
    INDEX_MISSING_SHARD = "index.missing-shard" Error {
        "",
        "",
        "",
    }
    INDEX_MISSING_TENSOR = "index.missing-tensor" Error {
        "",
        "",
        "",
    }
    INDEX_OTHER_SHARD = "index.other-shard" Error {
        "",
        "",
        "",
    }
    INDEX_SHARD_NAME = "index.shard-name" Error {
        "",
        "",
        "",
    }
    INDEX_SHARDS = "index.shards" Error {
        "",
        "",
        "",
    }
    INDEX_TOO_LONG = "index.too-long" Error {
        "",
        "",
        "",
    }
    INDEX_TOTAL_SIZE = "index.total-size" Error {
        "",
        "",
        "",
    }
    INDEX_UNINDEXED_TENSOR = "index.unindexed-tensor" Error {
        "",
        "",
        "",
    }
    INDEX_UTF8 = "index.utf8" Error {
        "",
        "",
        "",
    }
    INDEX_WEIGHT_MAP = "index.weight-map" Error {
        "",
        "",
        "",
    }
    CHECKPOINT_DUPLICATE = "checkpoint.duplicate" Error {
        "",
        "",
        "",
    }
    CHECKPOINT_SHARDS_ALONE = "checkpoint.shards-alone" Error {
        "",
        "",
        "",
    }
    DIRECTORY_AMBIGUOUS = "directory.ambiguous" Error {
        "",
        "",
        "",
    }
    DIRECTORY_EMPTY = "directory.empty" Error {
        "",
        "",
        "",
    }
    DIRECTORY_MISSING_SHARDS = "directory.missing-shards" Error {
        "",
        "",
        "",
    }
    DIRECTORY_OTHER_FORMAT = "directory.other-format" Error {
        "",
        "",
        "",
    }
    DIRECTORY_PARTIAL = "directory.partial" Error {
        "",
        "",
        "",
    }
    NAMES_COLLISION = "names.collision" Error {
        "",
        "",
        "",
    }
}
