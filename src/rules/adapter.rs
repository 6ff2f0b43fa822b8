//! Rules of adapters: ranks, target modules, and the configuration that they come with.

use super::rules;

const OTHER_CONFIG: &str = "the configuration is that of another adapter, or was changed after the training";
const TOGETHER: &str = "take adapter_config.json and the weights from the same run";
const NOT_FETCHED: &str = "only a part of the folder was downloaded or uploaded";
const BY_SCRIPT: &str = "the adapter was merged, split or renamed by a script, or the download was cut";

rules! {
    ADAPTER_CONFIG_MISSING "MW-AD-001" "adapter.config-missing" Warning:
        "there is no adapter_config.json beside the weights of an adapter";
        NOT_FETCHED;
        "fetch adapter_config.json, too: without it nobody knows how the weights are to be applied";
    ADAPTER_DORA "MW-AD-002" "adapter.dora" Warning:
        "the magnitude vectors of DoRA and use_dora do not go together";
        OTHER_CONFIG;
        "take adapter_config.json and the weights from the same run: the adapter computes something else otherwise";
    ADAPTER_MODULES_TO_SAVE "MW-AD-003" "adapter.modules-to-save" Warning:
        "none of the modules that were trained beside the adapter is stored";
        "the adapter was saved in parts, or modules_to_save was added later";
        "save the adapter again: the modules begin with random values otherwise";
    ADAPTER_PAIR "MW-AD-004" "adapter.pair" Error:
        "one of the matrices of a layer is missing that the adapter has for each";
        BY_SCRIPT;
        "fetch or save the adapter again";
    ADAPTER_PATTERN_UNUSED "MW-AD-005" "adapter.pattern-unused" Note:
        "a pattern for ranks or alphas fits no layer of the adapter";
        "a layer was renamed, or the pattern has a typing error";
        "correct the pattern, or remove it";
    ADAPTER_RANK "MW-AD-006" "adapter.rank" Error:
        "a LoRA layer has another rank than the configuration says";
        OTHER_CONFIG;
        TOGETHER;
    ADAPTER_SHAPE "MW-AD-007" "adapter.shape" Error:
        "the shapes of the tensors of an adapter do not fit each other or the configuration";
        BY_SCRIPT;
        "fetch or save the adapter again";
    ADAPTER_TARGET_UNUSED "MW-AD-008" "adapter.target-unused" Note:
        "a name of target_modules fits no layer of the adapter";
        "the list is one for several models, or has a typing error";
        "remove the name, if the model has no such layer";
    ADAPTER_TARGETS "MW-AD-009" "adapter.targets" Warning:
        "a layer of the adapter is none that target_modules names";
        OTHER_CONFIG;
        "take adapter_config.json and the weights from the same run: loaders leave such a layer out without a word";
    ADAPTER_TYPE "MW-AD-010" "adapter.type" Warning:
        "the weights are not those of the kind of adapter that the configuration says";
        OTHER_CONFIG;
        TOGETHER;
    ADAPTER_WEIGHTS_MISSING "MW-AD-011" "adapter.weights-missing" Warning:
        "there is an adapter_config.json, and no weights of an adapter beside it";
        NOT_FETCHED;
        "fetch adapter_model.safetensors, too";
}
