//! Rules of deltas: files that say what changed between two versions of a checkpoint.

use super::{DAMAGED, rules};

const AGAIN: &str = "write the delta again (max-weights delta create), or fetch it again";
const IN_ORDER: &str =
    "give the version that the first delta was made from, and then all deltas, each after the one that it builds on";

rules! {
    DELTA_ALONE "MW-DE-001" "delta.alone" Error:
        "a delta is opened without the checkpoint that it changes";
        "the path of the delta was given, and it has what changed, not weights";
        "give the base and then its deltas, as a list: load_weights([base, delta])";
    DELTA_BASE "MW-DE-002" "delta.base" Error:
        "a tensor of the base is not what the delta was made from";
        "the delta was made from another version, or the base was changed since";
        IN_ORDER;
    DELTA_CHAIN "MW-DE-003" "delta.chain" Error:
        "a delta does not build on the one before it";
        "one was left out, is there twice, or they are not in their order";
        IN_ORDER;
    DELTA_CHANGES "MW-DE-004" "delta.changes" Error:
        "what is said to have changed in a tensor cannot be so, or does not give what it should";
        DAMAGED;
        AGAIN;
    DELTA_HEADER "MW-DE-005" "delta.header" Error:
        "the metadata of a delta does not say what it should";
        "a newer version wrote it, or it was changed since";
        AGAIN;
    DELTA_TENSOR "MW-DE-006" "delta.tensor" Error:
        "a tensor of the delta does not fit the one that it changes";
        "the delta was made from another checkpoint";
        IN_ORDER;
}
