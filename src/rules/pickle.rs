//! Rules of the pickles in PyTorch's files. They are interpreted with the instructions and objects that torch.save writes, and no call is executed.

use super::{CUT, FETCH_AGAIN, MADE, MEMORY_HELP, rules};

const NOT_PYTORCH: &str = "torch.save does not write this; save the checkpoint again from where it was made";
const BROKEN: &str = "the pickle is damaged, or was put together by hand to mislead its reader";
const OTHER_PROGRAM: &str = "a program other than torch.save wrote the pickle, or it was put together by hand";
const SUBCLASS: &str =
    "a modified PyTorch or a subclass of its tensors writes them differently, or the pickle was put together by hand";

rules! {
    PICKLE_CALL "MW-PT-301" "pickle.call" Error:
        "a call is not of a class or function, or has arguments that PyTorch does not give it";
        OTHER_PROGRAM;
        NOT_PYTORCH;
    PICKLE_DICT "MW-PT-302" "pickle.dict" Error:
        "a dict has a key without a value, or one that Python does not allow";
        BROKEN;
        NOT_PYTORCH;
    PICKLE_EXTENT "MW-PT-303" "pickle.extent" Error:
        "the shape, strides and offset of a tensor lead outside its storage";
        "the pickle was changed to read memory that does not belong to the tensor, or is damaged";
        NOT_PYTORCH;
    PICKLE_FRAME "MW-PT-304" "pickle.frame" Error:
        "the pickle ends before its frame does";
        BROKEN;
        NOT_PYTORCH;
    PICKLE_GLOBAL "MW-PT-305" "pickle.global" Error:
        "the name of a class or function is not a string";
        BROKEN;
        NOT_PYTORCH;
    PICKLE_LEAVES "MW-PT-306" "pickle.leaves" Error:
        "the values of the pickle have more names than the limit allows";
        MADE;
        "containers that hold each other repeatedly have endless names; torch.save does not write them";
    PICKLE_LIMIT "MW-PT-307" "pickle.limit" Error:
        "the pickle has more of something than the limit allows";
        "the checkpoint holds far more than weights, or is made to exhaust its reader";
        "if the file is meant to be like this, raise the limit";
    PICKLE_MEMO "MW-PT-308" "pickle.memo" Error:
        "a value is used before it is made";
        BROKEN;
        NOT_PYTORCH;
    PICKLE_MEMORY "MW-PT-309" "pickle.memory" Error:
        "the values of the pickle would take more memory than is allowed";
        MADE;
        MEMORY_HELP;
    PICKLE_NEGATIVE "MW-PT-310" "pickle.negative" Error:
        "a size, an offset or a stride is negative";
        SUBCLASS;
        NOT_PYTORCH;
    PICKLE_NUMBER "MW-PT-311" "pickle.number" Error:
        "a number written as text is not a number";
        BROKEN;
        NOT_PYTORCH;
    PICKLE_NUMPY "MW-PT-312" "pickle.numpy" Error:
        "the dtype, the state and the bytes of a NumPy array do not fit together";
        BROKEN;
        NOT_PYTORCH;
    PICKLE_OPCODE "MW-PT-313" "pickle.opcode" Error:
        "an instruction does not exist, or needs something that is not in the file";
        OTHER_PROGRAM;
        NOT_PYTORCH;
    PICKLE_PERSISTENT "MW-PT-314" "pickle.persistent" Error:
        "a reference to something outside the pickle is not one of PyTorch's";
        OTHER_PROGRAM;
        NOT_PYTORCH;
    PICKLE_PROTOCOL "MW-PT-315" "pickle.protocol" Error:
        "the protocol of the pickle is unknown";
        "a newer Python wrote it, or its beginning is damaged";
        NOT_PYTORCH;
    PICKLE_RANK "MW-PT-316" "pickle.rank" Error:
        "a tensor has too many dimensions, or not as many strides as dimensions";
        BROKEN;
        NOT_PYTORCH;
    PICKLE_SAME_NAME "MW-PT-317" "pickle.same-name" Error:
        "two tensors get the same name";
        "nested dicts have keys that contain dots, such as {\"a\": {\"b\": …}} and \"a.b\"";
        "rename one of the keys where the checkpoint is made, or read the file as nested values";
    PICKLE_SET "MW-PT-318" "pickle.set" Error:
        "a set has an element that Python does not allow in a set";
        BROKEN;
        NOT_PYTORCH;
    PICKLE_STACK "MW-PT-319" "pickle.stack" Error:
        "an instruction takes more values than there are";
        BROKEN;
        NOT_PYTORCH;
    PICKLE_STORAGE "MW-PT-320" "pickle.storage" Error:
        "the reference to a storage has a part of the wrong kind";
        SUBCLASS;
        NOT_PYTORCH;
    PICKLE_STORAGE_CONFLICT "MW-PT-321" "pickle.storage-conflict" Error:
        "a storage is declared with two different sizes";
        BROKEN;
        NOT_PYTORCH;
    PICKLE_TARGET "MW-PT-322" "pickle.target" Error:
        "an instruction is applied to the wrong kind of value";
        BROKEN;
        NOT_PYTORCH;
    PICKLE_TENSOR "MW-PT-323" "pickle.tensor" Error:
        "a part of a tensor is of the wrong kind";
        SUBCLASS;
        NOT_PYTORCH;
    PICKLE_TEXT "MW-PT-324" "pickle.text" Error:
        "a string is not in the encoding that its instruction says";
        BROKEN;
        NOT_PYTORCH;
    PICKLE_TRAILING_DATA "MW-PT-325" "pickle.trailing-data" Warning:
        "bytes follow the end of the pickle";
        "they were put there on purpose, such as a second pickle, which torch.load does not read but another program may";
        "torch.save writes none, and torch.load does not read them; find out where they come from";
    PICKLE_TRUNCATED "MW-PT-326" "pickle.truncated" Error:
        "the pickle ends within an instruction";
        CUT;
        FETCH_AGAIN;
    PICKLE_VIEW "MW-PT-327" "pickle.view" Error:
        "a view leaves its storage";
        BROKEN;
        NOT_PYTORCH;
}
