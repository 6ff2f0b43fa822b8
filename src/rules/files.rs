//! Rules about files: their formats, and changes while they are open.

use super::{CUT, rules};

const OPEN_AGAIN: &str = "Open it again once it is complete, and replace files by renaming, not in place";

rules! {
    FILE_CHANGED "MW-FI-001" "file.changed" Error:
        "the file was written to since it was opened";
        "a training run or a download writes to the file while it is read";
        OPEN_AGAIN;
    FILE_DIRECTORY "MW-FI-002" "file.directory" Error:
        "a directory was given where a single file is expected";
        "the path of the model's folder was given, or a folder has the name of a file";
        "Give load_weights the directory, or give a reader the files in it";
    FILE_NOT_EXAMINED "MW-FI-018" "file.not-examined" Note:
        "the file is named like weights, but its format is unknown";
        "raw data of a program that keeps its own format, or a download that failed";
        "check it with the program that it is for, or remove it";
    FILE_PARTIAL "MW-FI-003" "file.partial" Error:
        "the name is that of an incomplete download";
        "hubs and browsers give a file such a name until all of it has arrived";
        "Wait for the download to end, or start it again";
    FILE_REPLACED "MW-FI-004" "file.replaced" Error:
        "the file at the path is not the one that was opened before";
        "the checkpoint was saved again under the same name since its weights were pickled, or a shard was replaced while the others were open";
        OPEN_AGAIN;
    FILE_SPECIAL "MW-FI-005" "file.special" Error:
        "the path does not lead to a regular file";
        "a pipe, a socket or a device was given, such as the /dev/fd/N of a shell's process substitution";
        "Copy it to a file first";
    FILE_SUFFIX "MW-FI-006" "file.suffix" Warning:
        "the suffix of the file is that of another format than its first bytes";
        "it was renamed by hand, or a program always saves under a fixed name";
        "it is opened by its content; rename it, as other programs use the suffix";
    FILE_TRUNCATED "MW-FI-007" "file.truncated" Error:
        "the file is shorter than it was when it was opened";
        "it is being written or downloaded again in place";
        OPEN_AGAIN;
    FILE_UNREADABLE "MW-FI-017" "file.unreadable" Error:
        "the file, or part of it, could not be examined";
        "it is not readable, is not a regular file, or time or memory ran out";
        "nothing is known about it: make it readable, and check it again";
    FORMAT_EMPTY "MW-FI-008" "format.empty" Error:
        "the file has no bytes";
        "a download that has not begun, or a program that ended before it wrote anything";
        "fetch it again; the download may not have begun";
    FORMAT_JSON "MW-FI-009" "format.json" Error:
        "the file is JSON";
        "a config.json or a server's error message was taken for the weights";
        "give the weights file, the folder, or an index whose name ends in .index.json";
    FORMAT_JSON_INDEX "MW-FI-010" "format.json-index" Error:
        "the file is the index of a set of shards, but does not have the name of one";
        "the index was renamed, or saved by a browser";
        "open the folder, or the index under a name that ends in .index.json";
    FORMAT_LFS_POINTER "MW-FI-011" "format.lfs-pointer" Error:
        "the file is the pointer that git keeps in place of a large file";
        "the repository was cloned without git-LFS";
        "run `git lfs pull` in the repository (after `git lfs install`)";
    FORMAT_PICKLE "MW-FI-012" "format.pickle" Error:
        "the file is a bare pickle";
        "pickle.dump was used instead of torch.save; such files can run code when they are loaded";
        "if you trust it, load it with the program that wrote it and save it as safetensors";
    FORMAT_STRANGER "MW-FI-013" "format.stranger" Error:
        "the file is of a known kind that is not a checkpoint";
        "an archive was not unpacked, or a model of another library was given";
        "unpack it or convert it first, as the message says";
    FORMAT_UNKNOWN "MW-FI-014" "format.unknown" Error:
        "the first bytes do not match any known format";
        CUT;
        "safetensors, GGUF and PyTorch files can be opened; if it should be one, fetch it again";
    FORMAT_WEB_PAGE "MW-FI-015" "format.web-page" Error:
        "the file is a web page";
        "a server answered with a page: a login, a licence to accept, or an error";
        "the download answered with a page: often a login, a licence to accept, or an error; open the file to read it";
    FORMAT_ZEROS "MW-FI-016" "format.zeros" Error:
        "the file begins with nothing but zeros";
        "a download reserves the space of the whole file before its first part arrives";
        "space was reserved for the file but its beginning never arrived; fetch it again";
}
