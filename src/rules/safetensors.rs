//! Rules of safetensors: the header's length, its JSON, each tensor, and the layout of the data.

use super::{APPENDED, CUT, DAMAGED, FETCH_AGAIN, MADE, TWO_IN_ONE, rules};

const SAVE_AGAIN: &str =
    "the file was not written by a safetensors library, or was changed since; save it again from its source";
const RENAME: &str = "rename it and save the file again";
const HARMLESS: &str = "nothing is lost; save the file again with a safetensors library to remove the defect";
const TWICE: &str = "a program joined headers as text; JSON readers differ in which of the two they take, so a scanner and a loader may see different files";

rules! {
    SAFETENSORS_AFTER_JSON "MW-ST-001" "safetensors.after-json" Error:
        "the header has characters other than spaces after its JSON";
        "the length before the header is wrong, or something is hidden behind it";
        SAVE_AGAIN;
    SAFETENSORS_DTYPE "MW-ST-002" "safetensors.dtype" Error:
        "a dtype is not a string";
        DAMAGED;
        SAVE_AGAIN;
    SAFETENSORS_DUPLICATE_FIELD "MW-ST-003" "safetensors.duplicate-field" Error:
        "an entry has a field twice";
        TWICE;
        SAVE_AGAIN;
    SAFETENSORS_DUPLICATE_METADATA "MW-ST-004" "safetensors.duplicate-metadata" Error:
        "__metadata__ occurs twice";
        TWICE;
        SAVE_AGAIN;
    SAFETENSORS_DUPLICATE_METADATA_KEY "MW-ST-005" "safetensors.duplicate-metadata-key" Error:
        "a key occurs twice in __metadata__";
        TWICE;
        SAVE_AGAIN;
    SAFETENSORS_DUPLICATE_NAME "MW-ST-006" "safetensors.duplicate-name" Error:
        "two tensors have the same name";
        TWICE;
        SAVE_AGAIN;
    SAFETENSORS_ENTRY "MW-ST-007" "safetensors.entry" Error:
        "an entry is not an object with the fields dtype, shape and data_offsets";
        "a program put its own text among the tensors instead of into __metadata__";
        SAVE_AGAIN;
    SAFETENSORS_HEADER_EMPTY "MW-ST-008" "safetensors.header-empty" Error:
        "the header has no bytes; the shortest one is {}";
        "the beginning of the file was never written, or was overwritten with zeros";
        FETCH_AGAIN;
    SAFETENSORS_HEADER_START "MW-ST-009" "safetensors.header-start" Error:
        "the header does not begin with {";
        "this is another kind of file, or its first bytes are damaged";
        SAVE_AGAIN;
    SAFETENSORS_HEADER_TOO_LONG "MW-ST-010" "safetensors.header-too-long" Error:
        "the header claims more bytes than the limit allows";
        "the first bytes are those of another format, read as a length";
        "the file is probably not a safetensors file; if it is, raise the limit on header bytes";
    SAFETENSORS_HOLE "MW-ST-011" "safetensors.hole" Error:
        "bytes between two tensors belong to neither";
        "a tensor was removed from the header but not from the data, or its offsets were aligned, which the format does not allow";
        SAVE_AGAIN;
    SAFETENSORS_JSON "MW-ST-012" "safetensors.json" Error:
        "the header is not valid JSON";
        DAMAGED;
        SAVE_AGAIN;
    SAFETENSORS_LEADING_SPACE "MW-ST-013" "safetensors.leading-space" Warning:
        "there is white space before the { of the header";
        "the JSON was written by a program that formats it; the format allows spaces only after it";
        HARMLESS;
    SAFETENSORS_METADATA "MW-ST-014" "safetensors.metadata" Error:
        "__metadata__ is not an object with strings as values";
        "a training program wrote numbers or nested values into it, which the format does not allow";
        SAVE_AGAIN;
    SAFETENSORS_METADATA_ENTRIES "MW-ST-015" "safetensors.metadata-entries" Error:
        "__metadata__ has more entries than the limit allows";
        MADE;
        "if you trust the file, raise the limit on metadata entries";
    SAFETENSORS_METADATA_NULL "MW-ST-016" "safetensors.metadata-null" Warning:
        "__metadata__ is null instead of being left out";
        "a program serialised an option that was not set";
        HARMLESS;
    SAFETENSORS_MISSING_FIELD "MW-ST-017" "safetensors.missing-field" Error:
        "an entry lacks its dtype, shape or data_offsets";
        "a program put its own data among the tensors, or the header is damaged";
        "every entry has the fields dtype, shape and data_offsets";
    SAFETENSORS_NAME_EMPTY "MW-ST-019" "safetensors.name-empty" Warning:
        "a tensor has an empty name";
        "a bare tensor was saved under the key \"\"; strict opening refuses it";
        RENAME;
    SAFETENSORS_NAME_NUL "MW-ST-020" "safetensors.name-nul" Warning:
        "a name contains a NUL character, where C programs end it";
        "names were made from binary data, or to look like another name; strict opening refuses it";
        RENAME;
    SAFETENSORS_OFFSETS "MW-ST-021" "safetensors.offsets" Error:
        "data_offsets is not two integers, the second at least as large as the first";
        "the header was written by hand, with a length in place of the end";
        SAVE_AGAIN;
    SAFETENSORS_OUTSIDE "MW-ST-022" "safetensors.outside" Error:
        "the data of a tensor lies outside the file";
        "offsets were counted from the start of the file instead of the data, or the header belongs to another file";
        SAVE_AGAIN;
    SAFETENSORS_OVERLAP "MW-ST-023" "safetensors.overlap" Error:
        "the data of two tensors overlaps";
        "tied weights were given the same offsets, which the format does not allow, or offsets were computed wrongly";
        SAVE_AGAIN;
    SAFETENSORS_PADDING "MW-ST-024" "safetensors.padding" Warning:
        "the header is padded with characters other than spaces";
        "the program that wrote it ends the JSON with a line break or a tab";
        HARMLESS;
    SAFETENSORS_RANK "MW-ST-025" "safetensors.rank" Error:
        "a shape has more dimensions than NumPy and PyTorch support";
        MADE;
        SAVE_AGAIN;
    SAFETENSORS_SHAPE "MW-ST-026" "safetensors.shape" Error:
        "a shape is not a list of non-negative integers";
        "a shape with an unknown dimension (-1, null) or with floats was written";
        SAVE_AGAIN;
    SAFETENSORS_SHAPE_OVERFLOW "MW-ST-027" "safetensors.shape-overflow" Error:
        "a shape has more elements than can be counted";
        MADE;
        SAVE_AGAIN;
    SAFETENSORS_SIZE "MW-ST-028" "safetensors.size" Error:
        "the shape and the dtype need a different number of bytes than data_offsets span";
        "the dtype or the shape was changed in the header but not in the data";
        SAVE_AGAIN;
    SAFETENSORS_SUB_BYTE "MW-ST-029" "safetensors.sub-byte" Error:
        "elements smaller than a byte do not end on a byte boundary";
        "an odd number of elements of 4 or 6 bits was saved without padding";
        "pad the last dimension to whole bytes";
    SAFETENSORS_TOO_SHORT "MW-ST-030" "safetensors.too-short" Error:
        "the file is too short to hold even the length of the header";
        CUT;
        FETCH_AGAIN;
    SAFETENSORS_TRAILING_DATA "MW-ST-031" "safetensors.trailing-data" Error:
        "bytes follow the data of the last tensor";
        TWO_IN_ONE;
        APPENDED;
    SAFETENSORS_TRUNCATED "MW-ST-032" "safetensors.truncated" Error:
        "the file ends before its data does";
        CUT;
        FETCH_AGAIN;
    SAFETENSORS_UNKNOWN_DTYPE "MW-ST-036" "safetensors.unknown-dtype" Error:
        "a tensor has a dtype that the format does not have";
        "a later version of the format has it, a program made it up, or the header is damaged";
        "write the tensor with a dtype of the format: the safetensors package refuses the file";
    SAFETENSORS_UNKNOWN_DTYPES "MW-ST-033" "safetensors.unknown-dtypes" Error:
        "the file names more unknown dtypes than any library has";
        MADE;
        SAVE_AGAIN;
    SAFETENSORS_UNKNOWN_FIELD "MW-ST-034" "safetensors.unknown-field" Warning:
        "an entry has a field that is not part of the format";
        "a program keeps its own data (strides, a scale) in the entry; other readers refuse it";
        "it is ignored; keep such notes in __metadata__";
    SAFETENSORS_UTF8 "MW-ST-035" "safetensors.utf8" Error:
        "the header is not UTF-8";
        "names were written in another encoding, or the header is damaged";
        SAVE_AGAIN;
}
