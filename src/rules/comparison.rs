//! Rules about expectations on a checkpoint.

use super::rules;

rules! {
    EXPECTATION_COUNT "MW-XP-001" "expectation.count" Error:
        "the number of tensors that match a pattern of the specification is wrong";
        "layers or experts are missing, or the checkpoint belongs to a model of another depth";
        "compare the number of layers in the configuration with the checkpoint, or correct the specification";
    EXPECTATION_DTYPE "MW-XP-002" "expectation.dtype" Error:
        "a tensor does not have the expected dtype";
        "it was saved in another precision, or quantized";
        "save it in the expected dtype, or allow this one in the specification";
    EXPECTATION_EXTRA "MW-XP-003" "expectation.extra" Error:
        "there is a tensor that is not expected";
        "buffers, adapters or the state of an optimizer were saved with it, or a name was changed";
        "save the checkpoint without it, or name it in the specification or in its allow_extra";
    EXPECTATION_METADATA "MW-XP-004" "expectation.metadata" Error:
        "a metadata key is missing, or does not have the expected value";
        "another program saved the file, or the metadata was dropped by a conversion";
        "save it with the expected metadata";
    EXPECTATION_MISSING "MW-XP-005" "expectation.missing" Error:
        "an expected tensor is missing";
        "a layer was not saved, the name has a prefix, or the checkpoint belongs to another model";
        "look for the name among the similar ones; a GGUF file or a wrapped model has other names";
    EXPECTATION_PARAMETERS "MW-XP-006" "expectation.parameters" Error:
        "there are more or fewer parameters than expected";
        "tensors are missing, there are too many, or the checkpoint belongs to a model of another size";
        "compare the list of tensors with that of a good checkpoint";
    EXPECTATION_SHAPE "MW-XP-007" "expectation.shape" Error:
        "a tensor does not have the expected shape";
        "the model has other sizes, a vocabulary was padded, or a matrix was transposed or packed";
        "compare the sizes in the configuration with the checkpoint, or correct the specification";
    EXPECTATION_SYMBOL "MW-XP-008" "expectation.symbol" Error:
        "a symbol of the specification stands for different numbers";
        "tensors of different models were put together, or one was resized without the others";
        "compare the shapes of the tensors that use the symbol";
    EXPECTATION_TIES "MW-XP-009" "expectation.ties" Error:
        "tensors that should be the same differ, or none of them is there";
        "one of them was changed or saved without the other, or weights were untied in training";
        "tie the weights and save the model again";
}
