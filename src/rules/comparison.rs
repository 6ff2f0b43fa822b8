//! Rules of what is compared: manifests, expectations, two checkpoints.

use super::rules;

rules! {
    DIFFERENCE_ADDED "MW-DF-001" "difference.added" Warning:
        "the second checkpoint has a tensor that the first has not";
        "a layer was added, a tied weight was written out, or the two have different schemes of names";
        "if the names differ only by a scheme, give --rename FROM=TO";
    DIFFERENCE_DTYPE "MW-DF-002" "difference.dtype" Warning:
        "a tensor has another dtype in the second checkpoint";
        "it was saved in another precision, or quantised";
        "save it in the dtype of the first, or compare with --no-dtype if only values count";
    DIFFERENCE_METADATA "MW-DF-003" "difference.metadata" Warning:
        "a key of the metadata has other values, or stands in one of the checkpoints only";
        "another program or version saved the file, or its tokenizer or settings were changed";
        "look whether the program that loads it needs the key, or compare with --no-metadata";
    DIFFERENCE_NOT_COMPARED "MW-DF-004" "difference.not-compared" Warning:
        "the values of a tensor could not be compared";
        "no array of the file stands for it, or its elements have no order or numbers in common with those of the other";
        "save it as a plain tensor in both";
    DIFFERENCE_REMOVED "MW-DF-005" "difference.removed" Warning:
        "the second checkpoint lacks a tensor that the first has";
        "a layer was left out, a tied weight was not written out, or the two have different schemes of names";
        "if the names differ only by a scheme, give --rename FROM=TO";
    DIFFERENCE_RENAMED "MW-DF-006" "difference.renamed" Warning:
        "a tensor has another name in the second checkpoint, with the same dtype, shape and bytes";
        "the model was saved below another module, or by a program with names of its own";
        "give --rename FROM=TO if the names are to be the same";
    DIFFERENCE_SHAPE "MW-DF-007" "difference.shape" Warning:
        "a tensor has another shape in the second checkpoint";
        "the model has other sizes, a vocabulary was padded, or a matrix was transposed or packed";
        "compare the configurations of the two models";
    DIFFERENCE_VALUES "MW-DF-008" "difference.values" Warning:
        "values of a tensor differ by more than the tolerances allow";
        "it was trained on, merged, rounded or quantised, or the file was damaged on the way";
        "if the difference is to be allowed, give --rtol and --atol";
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
