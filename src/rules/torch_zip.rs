//! Rules of torch_zip.

use super::rules;

rules! {
    TORCH_ZIP_BOMB = "torch-zip.bomb" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_BYTEORDER = "torch-zip.byteorder" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_CASE = "torch-zip.case" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_COMMENT = "torch-zip.comment" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_COUNT = "torch-zip.count" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_CRC = "torch-zip.crc" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_DEFLATE = "torch-zip.deflate" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_DIRECTORY = "torch-zip.directory" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_DIRECTORY_PLACE = "torch-zip.directory-place" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_DIRECTORY_TOO_LONG = "torch-zip.directory-too-long" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_DUPLICATE_NAME = "torch-zip.duplicate-name" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_ENCRYPTED = "torch-zip.encrypted" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_ENTRY_TOO_LONG = "torch-zip.entry-too-long" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_EXTRA = "torch-zip.extra" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_FLAGS = "torch-zip.flags" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_FOLDER = "torch-zip.folder" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_GAP = "torch-zip.gap" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_HEADER = "torch-zip.header" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_LOCAL_CRC = "torch-zip.local-crc" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_LOCAL_FLAGS = "torch-zip.local-flags" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_LOCAL_METHOD = "torch-zip.local-method" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_LOCAL_NAME = "torch-zip.local-name" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_LOCAL_SIZE = "torch-zip.local-size" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_METHOD = "torch-zip.method" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_MORE_FINDINGS = "torch-zip.more-findings" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_NAME = "torch-zip.name" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_NO_PICKLE = "torch-zip.no-pickle" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_ORDER = "torch-zip.order" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_OUTSIDE = "torch-zip.outside" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_OUTSIDE_PREFIX = "torch-zip.outside-prefix" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_OVERLAP = "torch-zip.overlap" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_PREPENDED = "torch-zip.prepended" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_RATIO = "torch-zip.ratio" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_SIZE = "torch-zip.size" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_SPLIT = "torch-zip.split" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_STRANGER = "torch-zip.stranger" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_TORCHSCRIPT = "torch-zip.torchscript" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_TRAILING_DATA = "torch-zip.trailing-data" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_TRUNCATED = "torch-zip.truncated" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_TWO_ENDS = "torch-zip.two-ends" Error {
        "",
        "",
        "",
    }
    TORCH_ZIP_ZIP64 = "torch-zip.zip64" Error {
        "",
        "",
        "",
    }
}
