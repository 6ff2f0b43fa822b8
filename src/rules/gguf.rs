//! Rules of GGUF: the start of the file, its metadata, each tensor, the layout of the data, and sets of files.

use super::{CUT, FETCH_AGAIN, HEADER_LIMIT, MADE, MEMORY_HELP, rules};

const CONVERT_AGAIN: &str =
    "the file was not written by one of ggml's tools, or was changed since; convert it again from its source";
const FETCH_TOGETHER: &str = "fetch or split all files of the set again together";
const BYTES_ONLY: &str = "convert it with the program that wrote it; its bytes can be read and copied unchanged";
const TWICE: &str = "a metadata editor added it instead of replacing it; readers differ in which of the two they take";
const LENGTHS: &str = "the file was cut short or damaged, so that a length is read from the wrong bytes, or it is made to exhaust its reader";
const FORK: &str = "the file was written by a fork of ggml, or by a newer version";
const MIXED: &str = "files of two sets, or of two versions of one set, are in one folder";
const EDITOR: &str = "a custom program wrote the metadata";

rules! {
    GGUF_ALIGNMENT "MW-GG-001" "gguf.alignment" Error:
        "general.alignment is not a power of two, or puts the data out of reach";
        EDITOR;
        CONVERT_AGAIN;
    GGUF_ALIGNMENT_SMALL "MW-GG-002" "gguf.alignment-small" Warning:
        "general.alignment is smaller than the 8 bytes that the format asks for";
        EDITOR;
        "it is still read; llama.cpp may refuse it: convert it again with a larger alignment";
    GGUF_ALIGNMENT_TYPE "MW-GG-003" "gguf.alignment-type" Warning:
        "general.alignment is not a u32";
        EDITOR;
        "it is still read; llama.cpp refuses it: write the value as a u32";
    GGUF_ARRAY_DEPTH "MW-GG-004" "gguf.array-depth" Error:
        "arrays are nested deeper than any program writes them";
        MADE;
        CONVERT_AGAIN;
    GGUF_ARRAY_LENGTH "MW-GG-005" "gguf.array-length" Error:
        "an array claims more elements than the file has room for";
        LENGTHS;
        FETCH_AGAIN;
    GGUF_BLOCK "MW-GG-006" "gguf.block" Error:
        "a row of the tensor is not a whole number of blocks of its type";
        "the tensor was quantized to a type that its last dimension does not fit, or the type's number is a fork's";
        CONVERT_AGAIN;
    GGUF_BOOL "MW-GG-007" "gguf.bool" Warning:
        "a bool in the metadata is neither 0 nor 1";
        EDITOR;
        "it counts as true; write the value again";
    GGUF_DUPLICATE_KEY "MW-GG-008" "gguf.duplicate-key" Error:
        "a key of the metadata is given twice";
        TWICE;
        CONVERT_AGAIN;
    GGUF_DUPLICATE_NAME "MW-GG-009" "gguf.duplicate-name" Error:
        "two tensors have the same name";
        "files were joined without renaming; readers differ in which of the two they take";
        CONVERT_AGAIN;
    GGUF_FORK_TYPE "MW-GG-010" "gguf.fork-type" Warning:
        "the type number of a tensor is a fork's, or was used by one before ggml used it for another type, and the size does not fit ggml's type";
        "the file was written by a fork of ggml";
        "convert it with the fork that wrote it; its bytes can be read and copied unchanged";
    GGUF_HEADER_TOO_LONG "MW-GG-011" "gguf.header-too-long" Error:
        "the header is longer than the limit";
        "a length in it is damaged, or the metadata holds more than any tokenizer needs";
        HEADER_LIMIT;
    GGUF_HEADS "MW-GG-012" "gguf.heads" Error:
        "the rows of a tensor cannot be reordered by the numbers of heads in the metadata";
        "the metadata belongs to another model, or the tensor was changed after it was converted";
        "take the weight from the tree with the file's own names";
    GGUF_HOLE "MW-GG-013" "gguf.hole" Warning:
        "there is more space between two tensors than padding needs";
        "a tensor was removed from the header but not from the data";
        "nothing is lost, but llama.cpp refuses the file: convert it again";
    GGUF_KEY_COUNT "MW-GG-014" "gguf.key-count" Error:
        "the file claims more metadata keys than it has room for";
        LENGTHS;
        FETCH_AGAIN;
    GGUF_KEY_EMPTY "MW-GG-015" "gguf.key-empty" Error:
        "a key of the metadata is empty";
        EDITOR;
        CONVERT_AGAIN;
    GGUF_KEY_UTF8 "MW-GG-016" "gguf.key-utf8" Error:
        "a key of the metadata is not UTF-8";
        LENGTHS;
        CONVERT_AGAIN;
    GGUF_MAGIC "MW-GG-017" "gguf.magic" Error:
        "the file does not begin with GGUF";
        "this is a different kind of file, or its beginning is damaged";
        FETCH_AGAIN;
    GGUF_MEMORY "MW-GG-018" "gguf.memory" Error:
        "the values of the metadata would take more memory than is allowed";
        MADE;
        MEMORY_HELP;
    GGUF_METADATA_ENTRIES "MW-GG-019" "gguf.metadata-entries" Error:
        "the file has more metadata keys than the limit allows";
        MADE;
        "if the file is meant to be like this, raise the limit on metadata entries";
    GGUF_NAME_EMPTY "MW-GG-021" "gguf.name-empty" Error:
        "a tensor has an empty name";
        LENGTHS;
        CONVERT_AGAIN;
    GGUF_NAME_LONG "MW-GG-022" "gguf.name-long" Warning:
        "a name is longer than the 63 bytes that older readers support";
        "the names of the source were kept instead of those of ggml";
        "it is still read; convert it again with shorter names, if an older llama.cpp is to read it";
    GGUF_NAME_NUL "MW-GG-023" "gguf.name-nul" Warning:
        "a name contains a NUL character, where C programs end it";
        "names were made from binary data, or to look like another name; strict opening refuses it";
        CONVERT_AGAIN;
    GGUF_NAME_UTF8 "MW-GG-024" "gguf.name-utf8" Error:
        "the name of a tensor is not UTF-8";
        LENGTHS;
        CONVERT_AGAIN;
    GGUF_OFFSET_UNALIGNED "MW-GG-025" "gguf.offset-unaligned" Error:
        "the offset of a tensor is not a multiple of the alignment";
        "general.alignment was changed without moving the data, or the data was written without padding";
        CONVERT_AGAIN;
    GGUF_ORDER "MW-GG-026" "gguf.order" Warning:
        "the tensors are not listed in the order of their data";
        "a tool sorted the list of tensors by name, or moved their data";
        "nothing is lost, but llama.cpp refuses the file: convert it again";
    GGUF_OUTSIDE "MW-GG-027" "gguf.outside" Error:
        "the data of a tensor lies outside the file, and that of tensors before it is missing";
        "the offset is wrong, or the header belongs to another file";
        CONVERT_AGAIN;
    GGUF_OVERLAP "MW-GG-028" "gguf.overlap" Error:
        "the data of two tensors overlaps";
        "tied weights were given the same offset, or the type of a tensor was changed in the header but not in the data";
        CONVERT_AGAIN;
    GGUF_RANK "MW-GG-029" "gguf.rank" Error:
        "a tensor has more dimensions than the 4 that the format allows";
        "a custom converter did not flatten a convolution or a stack of experts";
        CONVERT_AGAIN;
    GGUF_REMOVED_TYPE "MW-GG-030" "gguf.removed-type" Warning:
        "the type of a tensor is one that ggml removed";
        "the file was made when ggml still had the type";
        "quantize the model again from its source, or convert it with a version of llama.cpp that still has the type";
    GGUF_SHAPE_OVERFLOW "MW-GG-031" "gguf.shape-overflow" Error:
        "a shape has more elements than can be counted";
        LENGTHS;
        CONVERT_AGAIN;
    GGUF_SIZE_OVERFLOW "MW-GG-032" "gguf.size-overflow" Error:
        "the bytes of a tensor, or their end, are more than can be counted";
        LENGTHS;
        CONVERT_AGAIN;
    GGUF_SPLIT_COUNT "MW-GG-033" "gguf.split-count" Warning:
        "the files of a set disagree on how many there are";
        MIXED;
        FETCH_TOGETHER;
    GGUF_SPLIT_DUPLICATE "MW-GG-034" "gguf.split-duplicate" Warning:
        "a tensor is in two files of a set";
        MIXED;
        FETCH_TOGETHER;
    GGUF_SPLIT_KEYS "MW-GG-035" "gguf.split-keys" Warning:
        "the keys about the set of files are missing or are not numbers";
        "a file that is not part of the set is named like one, or a custom program split the model";
        FETCH_TOGETHER;
    GGUF_SPLIT_MISSING "MW-GG-036" "gguf.split-missing" Warning:
        "files of the set are missing";
        "the download is not complete, or only some files were given";
        "fetch them into the same directory: the download may not be complete";
    GGUF_SPLIT_NO "MW-GG-037" "gguf.split-no" Warning:
        "the number of a file in its set contradicts its name or the other files";
        "files were renamed, or copied over each other";
        FETCH_TOGETHER;
    GGUF_SPLIT_TOTAL "MW-GG-038" "gguf.split-total" Warning:
        "the files of a set do not have as many tensors in total as they say";
        MIXED;
        FETCH_TOGETHER;
    GGUF_STRING_LENGTH "MW-GG-039" "gguf.string-length" Error:
        "a string claims more bytes than the file has left";
        LENGTHS;
        FETCH_AGAIN;
    GGUF_TENSOR_COUNT "MW-GG-040" "gguf.tensor-count" Error:
        "the file claims more tensors than it has room for";
        LENGTHS;
        FETCH_AGAIN;
    GGUF_TEXT_UTF8 "MW-GG-041" "gguf.text-utf8" Warning:
        "a string in the metadata is not UTF-8";
        "a tokenizer's bytes were stored as text";
        "it is returned as bytes; nothing is lost";
    GGUF_TOO_SHORT "MW-GG-042" "gguf.too-short" Error:
        "the file is shorter than the start of a header";
        CUT;
        FETCH_AGAIN;
    GGUF_TRAILING_DATA "MW-GG-043" "gguf.trailing-data" Warning:
        "bytes after the last tensor are unused";
        "a tool padded the file to whole blocks, or appended data";
        "they are not read; if you do not know where they come from, convert the file again";
    GGUF_TRUNCATED "MW-GG-044" "gguf.truncated" Error:
        "the file ends before its header or its data does";
        CUT;
        FETCH_AGAIN;
    GGUF_UNKNOWN_TYPE "MW-GG-045" "gguf.unknown-type" Warning:
        "the type of a tensor is not known";
        FORK;
        BYTES_ONLY;
    GGUF_UNKNOWN_TYPES "MW-GG-046" "gguf.unknown-types" Error:
        "the file has more unknown tensor types than any fork has";
        LENGTHS;
        CONVERT_AGAIN;
    GGUF_VALUE_TYPE "MW-GG-047" "gguf.value-type" Error:
        "a value of the metadata has a type that the format does not have";
        LENGTHS;
        CONVERT_AGAIN;
    GGUF_VERSION "MW-GG-048" "gguf.version" Error:
        "the version of the format is not supported";
        "the file is newer than this library, or its beginning is damaged";
        "convert it with a version of llama.cpp that knows both";
}
