//! Rules of quantized checkpoints: packed weights, their scales, and the configuration of them.

use super::rules;

const OTHER_CONFIG: &str = "the configuration belongs to another quantization of the model";
const TOGETHER: &str = "take configuration and weights from the same source";
const BY_SCRIPT: &str = "the weights were split, merged or renamed by a script that does not know the scheme";
const AGAIN: &str = "fetch the checkpoint again from its source, or quantize the model again";

rules! {
    QUANTIZED_BITS "MW-QU-001" "quantized.bits" Warning:
        "the weights are not packed with the number of bits in the configuration";
        OTHER_CONFIG;
        TOGETHER;
    QUANTIZED_CONFIG_MISSING "MW-QU-002" "quantized.config-missing" Warning:
        "the weights are quantized, but the configuration does not declare it";
        "the configuration was copied from the model before it was quantized";
        "take the config.json that the quantization wrote: without it, loaders take the weights for plain ones";
    QUANTIZED_DTYPE "MW-QU-003" "quantized.dtype" Warning:
        "a part of a quantized weight has a dtype that its scheme does not have";
        "the file was converted as a whole to another dtype";
        AGAIN;
    QUANTIZED_EXCLUDED "MW-QU-004" "quantized.excluded" Warning:
        "a weight is quantized that the configuration excludes";
        OTHER_CONFIG;
        "take configuration and weights from the same source: loaders take such a weight for a plain one";
    QUANTIZED_GROUP_SIZE "MW-QU-005" "quantized.group-size" Warning:
        "the groups that share a scale do not have the size in the configuration";
        OTHER_CONFIG;
        TOGETHER;
    QUANTIZED_METHOD "MW-QU-006" "quantized.method" Warning:
        "the weights are not quantized by the method in the configuration";
        OTHER_CONFIG;
        TOGETHER;
    QUANTIZED_ORDER_MISSING "MW-QU-014" "quantized.order-missing" Warning:
        "the inputs were reordered, but the group of each is not stored";
        BY_SCRIPT;
        "fetch the checkpoint again: loaders take the inputs in order, which gives other values";
    QUANTIZED_SCALE_MISSING "MW-QU-007" "quantized.scale-missing" Error:
        "a packed weight has no scale, without which its values are unknown";
        BY_SCRIPT;
        AGAIN;
    QUANTIZED_SCALE_ORPHAN "MW-QU-008" "quantized.scale-orphan" Warning:
        "a scale belongs to no weight";
        BY_SCRIPT;
        AGAIN;
    QUANTIZED_SCALE_SHAPE "MW-QU-009" "quantized.scale-shape" Error:
        "a scale does not have the shape that its weight and its scheme require";
        "the scales belong to another weight or block size, or were changed by a script";
        AGAIN;
    QUANTIZED_SHAPE "MW-QU-010" "quantized.shape" Error:
        "a part of a quantized weight does not have the shape that its scheme requires";
        BY_SCRIPT;
        AGAIN;
    QUANTIZED_UNUSED "MW-QU-011" "quantized.unused" Warning:
        "the configuration says that the model is quantized, but no weight is";
        "the weights were converted back to plain ones, but the configuration was not updated";
        "remove quantization_config from the configuration, or take the quantized weights";
    QUANTIZED_ZERO_POINT_MISSING "MW-QU-012" "quantized.zero-point-missing" Warning:
        "a packed weight has no zero points";
        BY_SCRIPT;
        "fetch the checkpoint again: loaders take zeros in their place, which gives other values";
    QUANTIZED_ZERO_POINT_SHAPE "MW-QU-013" "quantized.zero-point-shape" Error:
        "the zero points do not have the shape that the weight and its scheme require";
        "the zero points belong to another weight or group size, or were changed by a script";
        AGAIN;
}
