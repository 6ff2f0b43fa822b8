//! Rules of files.

use super::rules;

rules! {
    FILE_CHANGED = "file.changed" Error {
        "",
        "",
        "",
    }
    FILE_DIRECTORY = "file.directory" Error {
        "",
        "",
        "",
    }
    FILE_PARTIAL = "file.partial" Error {
        "",
        "",
        "",
    }
    FILE_REPLACED = "file.replaced" Error {
        "",
        "",
        "",
    }
    FILE_SPECIAL = "file.special" Error {
        "",
        "",
        "",
    }
    FILE_SUFFIX = "file.suffix" Error {
        "",
        "",
        "",
    }
    FILE_TRUNCATED = "file.truncated" Error {
        "",
        "",
        "",
    }
    FORMAT_EMPTY = "format.empty" Error {
        "",
        "",
        "",
    }
    FORMAT_JSON = "format.json" Error {
        "",
        "",
        "",
    }
    FORMAT_JSON_INDEX = "format.json-index" Error {
        "",
        "",
        "",
    }
    FORMAT_LFS_POINTER = "format.lfs-pointer" Error {
        "",
        "",
        "",
    }
    FORMAT_PICKLE = "format.pickle" Error {
        "",
        "",
        "",
    }
    FORMAT_STRANGER = "format.stranger" Error {
        "",
        "",
        "",
    }
    FORMAT_UNKNOWN = "format.unknown" Error {
        "",
        "",
        "",
    }
    FORMAT_WEB_PAGE = "format.web-page" Error {
        "",
        "",
        "",
    }
    FORMAT_ZEROS = "format.zeros" Error {
        "",
        "",
        "",
    }
}
