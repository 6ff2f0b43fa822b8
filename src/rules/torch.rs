//! Rules of torch.

use super::rules;

rules! {
    TORCH_DEPTH = "torch.depth" Error {
        "",
        "",
        "",
    }
    TORCH_DISTRIBUTED = "torch.distributed" Error {
        "",
        "",
        "",
    }
    TORCH_FORMAT = "torch.format" Error {
        "",
        "",
        "",
    }
    TORCH_GLOBAL = "torch.global" Error {
        "",
        "",
        "",
    }
    TORCH_KEY = "torch.key" Error {
        "",
        "",
        "",
    }
    TORCH_MEMORY = "torch.memory" Error {
        "",
        "",
        "",
    }
    TORCH_MISSING_STORAGE = "torch.missing-storage" Error {
        "",
        "",
        "",
    }
    TORCH_NO_ARRAY = "torch.no-array" Error {
        "",
        "",
        "",
    }
    TORCH_OUTSIDE_STORAGE = "torch.outside-storage" Error {
        "",
        "",
        "",
    }
    TORCH_REFUSED = "torch.refused" Error {
        "",
        "",
        "",
    }
    TORCH_STORAGE_SIZE = "torch.storage-size" Error {
        "",
        "",
        "",
    }
    TORCH_TAR = "torch.tar" Error {
        "",
        "",
        "",
    }
    TORCH_VIEW_PLACE = "torch.view-place" Error {
        "",
        "",
        "",
    }
    TORCH_LEGACY_BYTEORDER = "torch-legacy.byteorder" Error {
        "",
        "",
        "",
    }
    TORCH_LEGACY_COUNT = "torch-legacy.count" Error {
        "",
        "",
        "",
    }
    TORCH_LEGACY_DUPLICATE_KEY = "torch-legacy.duplicate-key" Error {
        "",
        "",
        "",
    }
    TORCH_LEGACY_HEADER_TOO_LONG = "torch-legacy.header-too-long" Error {
        "",
        "",
        "",
    }
    TORCH_LEGACY_KEYS = "torch-legacy.keys" Error {
        "",
        "",
        "",
    }
    TORCH_LEGACY_MACHINE = "torch-legacy.machine" Error {
        "",
        "",
        "",
    }
    TORCH_LEGACY_MAGIC = "torch-legacy.magic" Error {
        "",
        "",
        "",
    }
    TORCH_LEGACY_MISSING_STORAGE = "torch-legacy.missing-storage" Error {
        "",
        "",
        "",
    }
    TORCH_LEGACY_MORE_FINDINGS = "torch-legacy.more-findings" Error {
        "",
        "",
        "",
    }
    TORCH_LEGACY_PROTOCOL = "torch-legacy.protocol" Error {
        "",
        "",
        "",
    }
    TORCH_LEGACY_TRAILING_DATA = "torch-legacy.trailing-data" Error {
        "",
        "",
        "",
    }
    TORCH_LEGACY_TRUNCATED = "torch-legacy.truncated" Error {
        "",
        "",
        "",
    }
    TORCH_LEGACY_UNKNOWN_STORAGE = "torch-legacy.unknown-storage" Error {
        "",
        "",
        "",
    }
    TORCH_LEGACY_VIEW = "torch-legacy.view" Error {
        "",
        "",
        "",
    }
}
