//! Rules of quantised checkpoints: packed weights, their scales, and what the configuration says of them.

use super::rules;

const OTHER_CONFIG: &str = "the configuration belongs to another quantisation of the model";
const TOGETHER: &str = "take configuration and weights from the same source";
const BY_SCRIPT: &str = "the weights were split, merged or renamed by a script that does not know the scheme";
const AGAIN: &str = "fetch the checkpoint again from its source, or quantise the model again";

rules! {
    QUANTISED_BITS "MW-QU-001" "quantised.bits" Warning:
        "the weights are not packed with the number of bits that the configuration says";
        OTHER_CONFIG;
        TOGETHER;
    QUANTISED_CONFIG_MISSING "MW-QU-002" "quantised.config-missing" Warning:
        "the weights are quantised, but the configuration does not say so";
        "the configuration was copied from the model before it was quantised";
        "take the config.json that the quantisation wrote: without it, loaders take the weights for plain ones";
    QUANTISED_DTYPE "MW-QU-003" "quantised.dtype" Warning:
        "a part of a quantised weight has a dtype that its scheme does not have";
        "the file was converted as a whole to another dtype";
        AGAIN;
    QUANTISED_EXCLUDED "MW-QU-004" "quantised.excluded" Warning:
        "a weight is quantised that the configuration excludes";
        OTHER_CONFIG;
        "take configuration and weights from the same source: loaders take such a weight for a plain one";
    QUANTISED_GROUP_SIZE "MW-QU-005" "quantised.group-size" Warning:
        "the groups that share a scale do not have the size that the configuration says";
        OTHER_CONFIG;
        TOGETHER;
    QUANTISED_METHOD "MW-QU-006" "quantised.method" Warning:
        "the weights are not quantised by the method that the configuration says";
        OTHER_CONFIG;
        TOGETHER;
    QUANTISED_ORDER_MISSING "MW-QU-014" "quantised.order-missing" Warning:
        "the inputs were reordered, but nothing says which group each belongs to";
        BY_SCRIPT;
        "fetch the checkpoint again: loaders take the inputs in order, which gives other values";
    QUANTISED_SCALE_MISSING "MW-QU-007" "quantised.scale-missing" Error:
        "a packed weight has no scale, without which its values are unknown";
        BY_SCRIPT;
        AGAIN;
    QUANTISED_SCALE_ORPHAN "MW-QU-008" "quantised.scale-orphan" Warning:
        "a scale belongs to no weight";
        BY_SCRIPT;
        AGAIN;
    QUANTISED_SCALE_SHAPE "MW-QU-009" "quantised.scale-shape" Error:
        "a scale does not have the shape that its weight and its scheme require";
        "the scales belong to another weight or block size, or were changed by a script";
        AGAIN;
    QUANTISED_SHAPE "MW-QU-010" "quantised.shape" Error:
        "a part of a quantised weight does not have the shape that its scheme requires";
        BY_SCRIPT;
        AGAIN;
    QUANTISED_UNUSED "MW-QU-011" "quantised.unused" Warning:
        "the configuration says that the model is quantised, but no weight is";
        "the weights were converted back to plain ones, but the configuration was not updated";
        "remove quantization_config from the configuration, or take the quantised weights";
    QUANTISED_ZERO_POINT_MISSING "MW-QU-012" "quantised.zero-point-missing" Warning:
        "a packed weight has no zero points";
        BY_SCRIPT;
        "fetch the checkpoint again: loaders take zeros in their place, which gives other values";
    QUANTISED_ZERO_POINT_SHAPE "MW-QU-013" "quantised.zero-point-shape" Error:
        "the zero points do not have the shape that the weight and its scheme require";
        "the zero points belong to another weight or group size, or were changed by a script";
        AGAIN;
}
