//! Rules about the files of one checkpoint together: the index of shards, directories, and names.

use super::{MADE, rules};

const WRITE_INDEX: &str = "fetch the index again, or write it again with the library that wrote the shards";
const TOGETHER: &str = "Fetch or write the shards and the index again together";
const EDITED: &str = "the index was written by hand or by a script, or was damaged";
const VERSIONS: &str =
    "the shards and the index are from different versions, or a script moved tensors without updating the index";

rules! {
    CHECKPOINT_DUPLICATE "MW-IX-001" "checkpoint.duplicate" Error:
        "two of the files have a tensor with the same name";
        "files of different checkpoints, or two copies of one, were opened together";
        "Open only files that belong to one checkpoint";
    CHECKPOINT_SHARDS_ALONE "MW-IX-002" "checkpoint.shards-alone" Warning:
        "some shards of a set are opened without the others";
        "the path of one shard was given";
        "Give the directory or the index to open all of them";
    DIRECTORY_AMBIGUOUS "MW-IX-003" "directory.ambiguous" Error:
        "the directory holds several checkpoints, none of them with the usual name";
        "a folder of training steps, or of several quantizations of a model";
        "Give one of them, or a list of files";
    DIRECTORY_EMPTY "MW-IX-004" "directory.empty" Error:
        "the directory holds no weights";
        "the clone was made without git-LFS, or only the configuration was downloaded";
        "Give the folder with the .safetensors files, or fetch them (a clone without git-LFS leaves them out)";
    DIRECTORY_MISSING_SHARDS "MW-IX-005" "directory.missing-shards" Error:
        "shards of the set are missing from the directory";
        "the download is not complete";
        "Fetch the missing shards; to open some shards only, give their paths as a list";
    DIRECTORY_OTHER_FORMAT "MW-IX-006" "directory.other-format" Error:
        "the directory holds weights only in formats that are not supported";
        "the model was published for Keras, Flax or ONNX only";
        "Give the file that is meant";
    DIRECTORY_PARTIAL "MW-IX-007" "directory.partial" Error:
        "the directory holds only incomplete downloads";
        "the download is not complete yet, or was interrupted";
        "Wait for the download, or start it again";
    INDEX_DELTA "MW-IX-023" "index.delta" Error:
        "the files hold the changes since another version of the checkpoint, not weights";
        "a trainer sent new weights to an engine as a delta (slime, miles, SkyRL and others write folders weight_v000012)";
        "open it with the version that it changes: load_weights([base, folder])";
    INDEX_DUPLICATE_NAME "MW-IX-008" "index.duplicate-name" Error:
        "the index names a tensor twice";
        "indexes were joined by hand; JSON readers differ in which of the two they take";
        WRITE_INDEX;
    INDEX_DUPLICATE_TENSOR "MW-IX-009" "index.duplicate-tensor" Warning:
        "a tensor is also in a second shard";
        VERSIONS;
        TOGETHER;
    INDEX_JSON "MW-IX-010" "index.json" Error:
        "the index is not JSON of the expected form";
        "the download was cut, or a page or a pointer was saved in its place";
        WRITE_INDEX;
    INDEX_METADATA "MW-IX-011" "index.metadata" Error:
        "the index has two entries for metadata";
        EDITED;
        WRITE_INDEX;
    INDEX_MISSING_SHARD "MW-IX-012" "index.missing-shard" Error:
        "a shard that the index names is missing";
        "the download is not complete";
        "Fetch it: the download may not be complete";
    INDEX_MISSING_TENSOR "MW-IX-013" "index.missing-tensor" Error:
        "a tensor is neither in the shard that the index puts it into, nor in any other";
        VERSIONS;
        "Fetch the shard and the index again: they are from different versions";
    INDEX_OTHER_SHARD "MW-IX-014" "index.other-shard" Error:
        "a tensor is not in the shard that the index gives, but in another";
        VERSIONS;
        TOGETHER;
    INDEX_SHARD_NAME "MW-IX-015" "index.shard-name" Error:
        "the name of a shard is not a plain path below the index";
        "the index was written on another system, or is made to read files outside its folder";
        WRITE_INDEX;
    INDEX_SHARDS "MW-IX-016" "index.shards" Error:
        "the index names more shards than the limit allows";
        MADE;
        WRITE_INDEX;
    INDEX_TOO_LONG "MW-IX-017" "index.too-long" Error:
        "the index is longer than the limit";
        "another file has the name of an index";
        "if you trust it, raise the limit on header bytes";
    INDEX_TOTAL_SIZE "MW-IX-018" "index.total-size" Warning:
        "the tensors do not add up to the number of bytes that the index says";
        "a script changed tensors without updating the index, or the writer counts tied weights differently";
        TOGETHER;
    INDEX_UNINDEXED_TENSOR "MW-IX-019" "index.unindexed-tensor" Warning:
        "a tensor of a shard is not in the index, and so is not part of the checkpoint";
        VERSIONS;
        TOGETHER;
    INDEX_UTF8 "MW-IX-020" "index.utf8" Error:
        "the index is not UTF-8";
        "an editor saved it in another encoding, or it is not text at all";
        WRITE_INDEX;
    INDEX_WEIGHT_MAP "MW-IX-021" "index.weight-map" Error:
        "the index has no weight_map, or two";
        EDITED;
        WRITE_INDEX;
    NAMES_COLLISION "MW-IX-022" "names.collision" Error:
        "two tensors would get the same name";
        "a renaming maps two names to one";
        "use the names of the file";
    NAMES_CONVERSION "MW-IX-118" "names.conversion" Error:
        "weights do not meet the requirements of a conversion rule";
        "the checkpoint is of another architecture, is incomplete, or already has another layout";
        "open all of its files, or use the rules of its architecture";
}
