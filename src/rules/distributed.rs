//! Rules of checkpoints of torch.distributed.checkpoint: the pieces of tensors in `.metadata`, and in the files.

use super::{DAMAGED, MADE, rules};

const ANOTHER_SAVE: &str = "files of two saves are mixed: some ranks were stopped, or a copy did not bring all files";
const SAVE_AGAIN: &str =
    "copy the whole folder again, or save the checkpoint again; strict=False opens the complete tensors";

rules! {
    DISTRIBUTED_DOUBLED_ITEM "MW-PT-517" "distributed.doubled-item" Error:
        "the file .metadata gives several places for a piece";
        DAMAGED;
        SAVE_AGAIN;
    DISTRIBUTED_HOLE "MW-PT-501" "distributed.hole" Error:
        "no piece has some elements of a tensor";
        "the piece of a rank was left out of .metadata, or the processes did not agree on how they divide the tensor";
        SAVE_AGAIN;
    DISTRIBUTED_ITEM "MW-PT-502" "distributed.item" Error:
        "an item of a file is not the piece that .metadata declares";
        ANOTHER_SAVE;
        SAVE_AGAIN;
    DISTRIBUTED_LIMIT "MW-PT-503" "distributed.limit" Error:
        "the layout of a tensor's pieces makes their comparison too slow";
        MADE;
        "no program divides a tensor like this";
    DISTRIBUTED_METADATA "MW-PT-504" "distributed.metadata" Error:
        "the file .metadata does not have the contents that torch.distributed.checkpoint writes";
        DAMAGED;
        "copy the whole folder again; torch is not asked to read such a file, as that would run what it names";
    DISTRIBUTED_MISSING_FILE "MW-PT-505" "distributed.missing-file" Error:
        "a file of a rank is missing";
        "the copy lacks the files of some ranks, or each machine saved to its local disk";
        "copy the files of all machines and .metadata into one folder; strict=False opens the complete tensors";
    DISTRIBUTED_MISSING_ITEM "MW-PT-506" "distributed.missing-item" Error:
        "the file .metadata gives no place for a piece";
        DAMAGED;
        SAVE_AGAIN;
    DISTRIBUTED_NO_METADATA "MW-PT-507" "distributed.no-metadata" Error:
        "there are files of ranks, but no file .metadata that describes them";
        "the save was stopped before its end, or hidden files were not copied";
        "copy .metadata, too, whose name begins with a dot; a save that did not finish cannot be opened";
    DISTRIBUTED_OUTSIDE "MW-PT-508" "distributed.outside" Error:
        "an item ends behind the end of its file";
        "the file was cut short, or is one of another save";
        SAVE_AGAIN;
    DISTRIBUTED_OVERLAP "MW-PT-509" "distributed.overlap" Error:
        "two pieces of a tensor overlap";
        "the processes did not agree on how they divide the tensor, or the file is made so that two readers see different values";
        SAVE_AGAIN;
    DISTRIBUTED_PATH "MW-PT-510" "distributed.path" Error:
        "the file .metadata puts an item into a file outside the folder";
        "no program writes this: the file is made so that its reader opens other files";
        "do not trust the checkpoint";
    DISTRIBUTED_SHAPE "MW-PT-511" "distributed.shape" Error:
        "a piece extends beyond its tensor";
        DAMAGED;
        SAVE_AGAIN;
    DISTRIBUTED_SHARED_ITEM "MW-PT-512" "distributed.shared-item" Error:
        "two pieces have the same bytes of a file";
        MADE;
        "do not trust the checkpoint";
    DISTRIBUTED_SIZE "MW-PT-513" "distributed.size" Error:
        "an item has fewer bytes than its piece";
        "the item was cut short, or .metadata belongs to another save";
        SAVE_AGAIN;
    DISTRIBUTED_TRANSFORM "MW-PT-514" "distributed.transform" Error:
        "an item was saved with an extension, such as compression";
        "FileSystemWriter was given extensions";
        "load it with torch, and save it without extensions";
    DISTRIBUTED_UNNAMED_ITEM "MW-PT-516" "distributed.unnamed-item" Error:
        "no tensor or value has the name of an item";
        DAMAGED;
        SAVE_AGAIN;
    DISTRIBUTED_VALUES "MW-PT-515" "distributed.values" Note:
        "some values that are not tensors are not read";
        "they are too many or too long, or were not written by torch.save";
        "load them with torch, if you trust the checkpoint";
}
