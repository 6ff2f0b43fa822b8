//! Rules of checkpoints of torch.distributed.checkpoint: what `.metadata` says of the pieces of tensors, and whether the files have them.

use super::{DAMAGED, MADE, rules};

const ANOTHER_SAVE: &str = "files of two saves are mixed: some ranks were stopped, or a copy did not bring all files";
const SAVE_AGAIN: &str = "copy the whole folder again, or save the checkpoint again; strict=False opens what is whole";

rules! {
    DISTRIBUTED_DOUBLED_ITEM "MW-PT-517" "distributed.doubled-item" Error:
        "the file .metadata says in several ways where a piece is";
        DAMAGED;
        SAVE_AGAIN;
    DISTRIBUTED_HOLE "MW-PT-501" "distributed.hole" Error:
        "no piece has some elements of a tensor";
        "the piece of a rank was left out of .metadata, or the processes did not agree on how they divide the tensor";
        SAVE_AGAIN;
    DISTRIBUTED_ITEM "MW-PT-502" "distributed.item" Error:
        "an item of a file is not the piece that .metadata says it is";
        ANOTHER_SAVE;
        SAVE_AGAIN;
    DISTRIBUTED_LIMIT "MW-PT-503" "distributed.limit" Error:
        "the pieces of a tensor lie so that it takes too long to compare them";
        MADE;
        "no program divides a tensor like this";
    DISTRIBUTED_METADATA "MW-PT-504" "distributed.metadata" Error:
        "the file .metadata does not say what torch.distributed.checkpoint writes there";
        DAMAGED;
        "copy the whole folder again; torch is not asked to read such a file, as that would run what it names";
    DISTRIBUTED_MISSING_FILE "MW-PT-505" "distributed.missing-file" Error:
        "a file of a rank is missing";
        "the copy did not bring the files of all ranks, or each machine saved to a disk of its own";
        "bring the files of all machines into one folder, beside .metadata; strict=False opens what is whole";
    DISTRIBUTED_MISSING_ITEM "MW-PT-506" "distributed.missing-item" Error:
        "the file .metadata does not say where a piece is";
        DAMAGED;
        SAVE_AGAIN;
    DISTRIBUTED_NO_METADATA "MW-PT-507" "distributed.no-metadata" Error:
        "there are files of ranks, but no file .metadata that says what is in them";
        "the save was stopped before its end, or hidden files were not copied";
        "copy .metadata, too, whose name begins with a dot; a save that did not finish cannot be opened";
    DISTRIBUTED_OUTSIDE "MW-PT-508" "distributed.outside" Error:
        "an item reaches beyond the end of its file";
        "the file was cut short, or is one of another save";
        SAVE_AGAIN;
    DISTRIBUTED_OVERLAP "MW-PT-509" "distributed.overlap" Error:
        "two pieces of a tensor have elements in common";
        "the processes did not agree on how they divide the tensor, or the file is made so that two readers see different values";
        SAVE_AGAIN;
    DISTRIBUTED_PATH "MW-PT-510" "distributed.path" Error:
        "an item is said to be in a file outside the folder";
        "no program writes this: such a file is made to have others read";
        "do not trust the checkpoint";
    DISTRIBUTED_SHAPE "MW-PT-511" "distributed.shape" Error:
        "a piece reaches outside its tensor";
        DAMAGED;
        SAVE_AGAIN;
    DISTRIBUTED_SHARED_ITEM "MW-PT-512" "distributed.shared-item" Error:
        "two pieces are said to be in the same bytes of a file";
        MADE;
        "do not trust the checkpoint";
    DISTRIBUTED_SIZE "MW-PT-513" "distributed.size" Error:
        "an item has fewer bytes than its piece";
        "the item was cut short, or .metadata belongs to another save";
        SAVE_AGAIN;
    DISTRIBUTED_TRANSFORM "MW-PT-514" "distributed.transform" Error:
        "an item was put through an extension, such as compression, when it was saved";
        "FileSystemWriter was given extensions";
        "load it with torch, and save it without extensions";
    DISTRIBUTED_UNNAMED_ITEM "MW-PT-516" "distributed.unnamed-item" Error:
        "an item is of a name that no tensor and no value has";
        DAMAGED;
        SAVE_AGAIN;
    DISTRIBUTED_VALUES "MW-PT-515" "distributed.values" Note:
        "some values that are not tensors are not read";
        "there are very many of them, they are long, or something else than torch.save wrote them";
        "load them with torch, if you trust the checkpoint";
}
