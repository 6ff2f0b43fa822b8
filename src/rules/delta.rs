//! Rules of deltas: files with the changes between two versions of a checkpoint.

use super::{DAMAGED, rules};

const AGAIN: &str = "write the delta again (max-weights delta create), or fetch it again";
const IN_ORDER: &str =
    "pass the version that the first delta was made from, and then all deltas, each after the one that it builds on";

rules! {
    DELTA_ALONE "MW-DE-001" "delta.alone" Error:
        "a delta is opened without the checkpoint that it changes";
        "the path of the delta was given, which has changes, not weights";
        "pass the base and then its deltas, as a list: load_weights([base, delta])";
    DELTA_BASE "MW-DE-002" "delta.base" Error:
        "a tensor of the base is not what the delta was made from";
        "the delta was made from another version, or the base was changed since";
        IN_ORDER;
    DELTA_CHAIN "MW-DE-003" "delta.chain" Error:
        "a delta does not build on the one before it";
        "one is missing or duplicated, or they are not in order";
        IN_ORDER;
    DELTA_CHANGES "MW-DE-004" "delta.changes" Error:
        "the changes to a tensor are invalid, or do not give the expected result";
        DAMAGED;
        AGAIN;
    DELTA_HEADER "MW-DE-005" "delta.header" Error:
        "the metadata of a delta are invalid";
        "a newer version wrote it, or it was changed since";
        AGAIN;
    DELTA_TENSOR "MW-DE-006" "delta.tensor" Error:
        "a tensor of the delta does not fit the one that it changes";
        "the delta was made from another checkpoint";
        IN_ORDER;
}
