//! Rules of what is expected of a checkpoint.

use super::rules;

rules! {
    EXPECTATION_COUNT "MW-XP-001" "expectation.count" Error:
        "another number of tensors matches a pattern of the specification";
        "layers or experts are missing, or the checkpoint is of a model of another depth";
        "compare the number of layers in the configuration with the checkpoint, or correct the specification";
    EXPECTATION_DTYPE "MW-XP-002" "expectation.dtype" Error:
        "a tensor has another dtype than is expected";
        "it was saved in another precision, or quantised";
        "save it in the dtype that is expected, or allow this one in the specification";
    EXPECTATION_EXTRA "MW-XP-003" "expectation.extra" Error:
        "there is a tensor that is not expected";
        "buffers, adapters or the state of an optimizer were saved with it, or a name was changed";
        "save it without, or name it in the specification or in its allow_extra";
    EXPECTATION_METADATA "MW-XP-004" "expectation.metadata" Error:
        "a key of the metadata is missing, or has another value than is expected";
        "another program saved the file, or the metadata was dropped by a conversion";
        "save it with the metadata that is expected";
    EXPECTATION_MISSING "MW-XP-005" "expectation.missing" Error:
        "a tensor that is expected is not there";
        "a layer was not saved, the name has a prefix, or the checkpoint is of another model";
        "look for the name among the near ones; a file of GGUF or of a wrapped model has other names";
    EXPECTATION_PARAMETERS "MW-XP-006" "expectation.parameters" Error:
        "there are more or fewer parameters than are expected";
        "tensors are missing or there are too many, or the checkpoint is of a model of another size";
        "compare the list of tensors with that of a checkpoint that is good";
    EXPECTATION_SHAPE "MW-XP-007" "expectation.shape" Error:
        "a tensor has another shape than is expected";
        "the model has other sizes, a vocabulary was padded, or a matrix was transposed or packed";
        "compare the sizes in the configuration with the checkpoint, or correct the specification";
    EXPECTATION_SYMBOL "MW-XP-008" "expectation.symbol" Error:
        "a symbol of the specification stands for different numbers";
        "tensors of different models were put together, or one was resized without the others";
        "compare the shapes of the tensors that the symbol stands in";
    EXPECTATION_TIES "MW-XP-009" "expectation.ties" Error:
        "tensors that are to be one are not, or none of them is there";
        "one of them was changed or saved without the other, or weights were untied in training";
        "tie the weights and save the model again";
}
