//! Rules of pickle.

use super::rules;

rules! {
    PICKLE_CALL = "pickle.call" Error {
        "",
        "",
        "",
    }
    PICKLE_DICT = "pickle.dict" Error {
        "",
        "",
        "",
    }
    PICKLE_EXTENT = "pickle.extent" Error {
        "",
        "",
        "",
    }
    PICKLE_FRAME = "pickle.frame" Error {
        "",
        "",
        "",
    }
    PICKLE_GLOBAL = "pickle.global" Error {
        "",
        "",
        "",
    }
    PICKLE_LEAVES = "pickle.leaves" Error {
        "",
        "",
        "",
    }
    PICKLE_LIMIT = "pickle.limit" Error {
        "",
        "",
        "",
    }
    PICKLE_MEMO = "pickle.memo" Error {
        "",
        "",
        "",
    }
    PICKLE_MEMORY = "pickle.memory" Error {
        "",
        "",
        "",
    }
    PICKLE_NEGATIVE = "pickle.negative" Error {
        "",
        "",
        "",
    }
    PICKLE_NUMBER = "pickle.number" Error {
        "",
        "",
        "",
    }
    PICKLE_NUMPY = "pickle.numpy" Error {
        "",
        "",
        "",
    }
    PICKLE_OPCODE = "pickle.opcode" Error {
        "",
        "",
        "",
    }
    PICKLE_PERSISTENT = "pickle.persistent" Error {
        "",
        "",
        "",
    }
    PICKLE_PROTOCOL = "pickle.protocol" Error {
        "",
        "",
        "",
    }
    PICKLE_RANK = "pickle.rank" Error {
        "",
        "",
        "",
    }
    PICKLE_SAME_NAME = "pickle.same-name" Error {
        "",
        "",
        "",
    }
    PICKLE_SET = "pickle.set" Error {
        "",
        "",
        "",
    }
    PICKLE_STACK = "pickle.stack" Error {
        "",
        "",
        "",
    }
    PICKLE_STORAGE = "pickle.storage" Error {
        "",
        "",
        "",
    }
    PICKLE_STORAGE_CONFLICT = "pickle.storage-conflict" Error {
        "",
        "",
        "",
    }
    PICKLE_TARGET = "pickle.target" Error {
        "",
        "",
        "",
    }
    PICKLE_TENSOR = "pickle.tensor" Error {
        "",
        "",
        "",
    }
    PICKLE_TEXT = "pickle.text" Error {
        "",
        "",
        "",
    }
    PICKLE_TRAILING_DATA = "pickle.trailing-data" Error {
        "",
        "",
        "",
    }
    PICKLE_TRUNCATED = "pickle.truncated" Error {
        "",
        "",
        "",
    }
    PICKLE_VIEW = "pickle.view" Error {
        "",
        "",
        "",
    }
}
