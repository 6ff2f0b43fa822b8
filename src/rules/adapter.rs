//! Rules of adapters: ranks, target modules, and the matching configuration.

use super::rules;

const OTHER_CONFIG: &str = "the configuration belongs to another adapter, or was changed after training";
const TOGETHER: &str = "take adapter_config.json and the weights from the same run";
const NOT_FETCHED: &str = "only part of the folder was downloaded or uploaded";
const BY_SCRIPT: &str = "the adapter was merged, split or renamed by a script, or the download was cut";

rules! {
    ADAPTER_CONFIG_MISSING "MW-AD-001" "adapter.config-missing" Warning:
        "the folder of an adapter's weights has no adapter_config.json";
        NOT_FETCHED;
        "fetch adapter_config.json as well: it defines how to apply the weights";
    ADAPTER_DORA "MW-AD-002" "adapter.dora" Warning:
        "the magnitude vectors of DoRA do not agree with use_dora";
        OTHER_CONFIG;
        "take adapter_config.json and the weights from the same run: otherwise, the adapter computes something else";
    ADAPTER_MODULES_TO_SAVE "MW-AD-003" "adapter.modules-to-save" Warning:
        "none of the modules that were trained along with the adapter is stored";
        "the adapter was saved in parts, or modules_to_save was added later";
        "save the adapter again: otherwise, the modules start with random values";
    ADAPTER_PAIR "MW-AD-004" "adapter.pair" Error:
        "a layer lacks one of the matrices that the adapter needs for each layer";
        BY_SCRIPT;
        "fetch or save the adapter again";
    ADAPTER_PATTERN_UNUSED "MW-AD-005" "adapter.pattern-unused" Note:
        "a pattern for ranks or alphas matches no layer of the adapter";
        "a layer was renamed, or the pattern has a typo";
        "correct the pattern, or remove it";
    ADAPTER_RANK "MW-AD-006" "adapter.rank" Error:
        "the rank of a LoRA layer is not the one in the configuration";
        OTHER_CONFIG;
        TOGETHER;
    ADAPTER_SHAPE "MW-AD-007" "adapter.shape" Error:
        "the shapes of the tensors of an adapter do not fit each other or the configuration";
        BY_SCRIPT;
        "fetch or save the adapter again";
    ADAPTER_TARGET_UNUSED "MW-AD-008" "adapter.target-unused" Note:
        "a name in target_modules matches no layer of the adapter";
        "the list was made for several models, or has a typo";
        "remove the name, if the model has no such layer";
    ADAPTER_TARGETS "MW-AD-009" "adapter.targets" Warning:
        "the adapter has a layer that target_modules does not name";
        OTHER_CONFIG;
        "take adapter_config.json and the weights from the same run: loaders leave out such a layer silently";
    ADAPTER_TYPE "MW-AD-010" "adapter.type" Warning:
        "the weights belong to a different kind of adapter than the one in the configuration";
        OTHER_CONFIG;
        TOGETHER;
    ADAPTER_WEIGHTS_MISSING "MW-AD-011" "adapter.weights-missing" Warning:
        "there is an adapter_config.json, but no adapter weights in its folder";
        NOT_FETCHED;
        "fetch adapter_model.safetensors as well";
}
