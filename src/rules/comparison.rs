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
}
