//! Rules of PyTorch's files outside their zip archive and their pickle: the values that a loader builds, and the stream from before 1.6.

use super::{CUT, DAMAGED, FETCH_AGAIN, HEADER_LIMIT, MADE, MEMORY_HELP, TORCH_AGAIN, rules};

const WHAT_IS_WHOLE: &str =
    "the file was not written by torch.save, or was changed since; load_weights reads the tensors that are intact";

rules! {
    TORCH_DEPTH "MW-PT-401" "torch.depth" Error:
        "the values of the file are nested deeper than Python compares and prints";
        MADE;
        "load_weights still reads the tensors";
    TORCH_FORMAT "MW-PT-403" "torch.format" Error:
        "torch.load was asked for a file that torch.save did not write";
        "the file is safetensors or GGUF under a suffix of PyTorch";
        "load_file and load_weights open it";
    TORCH_GLOBAL "MW-PT-404" "torch.global" Error:
        "the pickle names a class or function that is not built";
        "the checkpoint holds objects of the program that wrote it, or a call that is meant to run when it is loaded";
        "load_weights still reads the tensors, and objects() shows the rest as placeholders";
    TORCH_KEY "MW-PT-405" "torch.key" Error:
        "the key of a dict, or an element of a set, is one that Python does not allow, or takes too long to compare";
        MADE;
        "no program writes this; it was made to keep its reader busy";
    TORCH_MEMORY "MW-PT-406" "torch.memory" Error:
        "the values of the file would take more memory than is allowed";
        MADE;
        MEMORY_HELP;
    TORCH_MISSING_STORAGE "MW-PT-407" "torch.missing-storage" Error:
        "the pickle names a storage that the file does not have";
        "the archive was packed again without some of its entries, or the file was assembled from two";
        FETCH_AGAIN;
    TORCH_NO_ARRAY "MW-PT-408" "torch.no-array" Error:
        "the tensor is not an array in the file: it is sparse, quantized, without data, or of a custom class";
        "such tensors consist of several arrays, or of none";
        "max_weights.torch.load returns it as torch does";
    TORCH_OUTSIDE_STORAGE "MW-PT-409" "torch.outside-storage" Error:
        "a tensor reaches beyond its storage";
        DAMAGED;
        TORCH_AGAIN;
    TORCH_REFUSED "MW-PT-410" "torch.refused" Error:
        "torch cannot build the values in the file";
        "the values do not fit together: indices of a sparse tensor outside its shape, or a scale of the wrong size";
        WHAT_IS_WHOLE;
    TORCH_STORAGE_SIZE "MW-PT-411" "torch.storage-size" Error:
        "a storage has fewer bytes than the pickle says";
        "the entry was replaced or cut short, or the pickle belongs to another file";
        TORCH_AGAIN;
    TORCH_TAR "MW-PT-412" "torch.tar" Error:
        "this is a PyTorch tar archive, from before version 0.1.10";
        "the checkpoint is from 2017 or earlier; the reader of such files ran code from the file (CVE-2025-32434)";
        "if you trust the file, load it with torch in a sandbox and save it again as safetensors";
    TORCH_VIEW_PLACE "MW-PT-413" "torch.view-place" Error:
        "a view begins within an element of its storage, which torch cannot express";
        "a file from before 1.6 has views of another dtype than their storage";
        "load_weights reads it";
    TORCH_LEGACY_BYTEORDER "MW-PT-201" "torch-legacy.byteorder" Warning:
        "the file declares that a big-endian machine wrote it";
        "it was saved on such a machine: PyTorch writes little-endian elements there, too";
        "compare some values with the source";
    TORCH_LEGACY_COUNT "MW-PT-202" "torch-legacy.count" Error:
        "the number before a storage is not its number of elements in the pickle";
        "bytes were lost or inserted before it";
        TORCH_AGAIN;
    TORCH_LEGACY_DUPLICATE_KEY "MW-PT-203" "torch-legacy.duplicate-key" Error:
        "the list of keys has a storage twice";
        DAMAGED;
        TORCH_AGAIN;
    TORCH_LEGACY_HEADER_TOO_LONG "MW-PT-204" "torch-legacy.header-too-long" Error:
        "the pickles at the start of the file are longer than the limit";
        "the file holds large values besides its tensors, or is made to exhaust its reader";
        HEADER_LIMIT;
    TORCH_LEGACY_KEYS "MW-PT-205" "torch-legacy.keys" Error:
        "the last pickle is not a list of storage keys";
        DAMAGED;
        TORCH_AGAIN;
    TORCH_LEGACY_MACHINE "MW-PT-206" "torch-legacy.machine" Error:
        "the third pickle is not the dict about the machine";
        DAMAGED;
        TORCH_AGAIN;
    TORCH_LEGACY_MAGIC "MW-PT-207" "torch-legacy.magic" Error:
        "the first pickle is not the number that a PyTorch file begins with";
        "this is another program's pickle";
        TORCH_AGAIN;
    TORCH_LEGACY_MISSING_STORAGE "MW-PT-208" "torch-legacy.missing-storage" Error:
        "a used storage is not in the list of keys";
        DAMAGED;
        TORCH_AGAIN;
    TORCH_LEGACY_PROTOCOL "MW-PT-210" "torch-legacy.protocol" Error:
        "the second pickle is not the number of PyTorch's protocol";
        DAMAGED;
        TORCH_AGAIN;
    TORCH_LEGACY_TRAILING_DATA "MW-PT-211" "torch-legacy.trailing-data" Warning:
        "bytes follow the last storage";
        "torch.save was called twice with one open file";
        "a second object may have been saved to the same file; it is not read";
    TORCH_LEGACY_TRUNCATED "MW-PT-212" "torch-legacy.truncated" Error:
        "the file ends within a pickle or a storage";
        CUT;
        FETCH_AGAIN;
    TORCH_LEGACY_UNKNOWN_STORAGE "MW-PT-213" "torch-legacy.unknown-storage" Error:
        "the list of keys has a storage that nothing uses, so its size is unknown";
        DAMAGED;
        TORCH_AGAIN;
    TORCH_LEGACY_VIEW "MW-PT-214" "torch-legacy.view" Error:
        "the view of a storage leaves it, or has the key of another";
        DAMAGED;
        TORCH_AGAIN;
}
