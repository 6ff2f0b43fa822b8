//! What the classes and functions that plain weights need take: which of them have a state, how they are filled, and what no state may set.

use crate::words;

/// Keys of a state that change the class of an object, or that make it call something.
const SPECIAL_KEYS: &str = "__setstate__ __class__ __builtins__ __code__ __globals__ __getattribute__ __getattr__ __reduce__ __reduce_ex__ __import__
    __call__ __new__ __del__ __defaults__ __kwdefaults__ __closure__ __bases__ __mro__ __subclasses__ __loader__ __spec__ __path__
    __torch_function__ __torch_dispatch__ __array__ __array_ufunc__ __array_function__ __set_name__ __init_subclass__ __instancecheck__
    __eq__ __hash__ __getitem__ __setitem__ __missing__ __len__ __iter__ __next__ __enter__ __exit__ __get__ __set__ __repr__ __str__
    _backward_hooks.__setstate__";

/// What makes values that have no state.
const CALLS_ONLY: &str = "
    _load_from_bytes encode scalar _get_layout bytes str int float bool complex slice range device
    date time timezone dict list tuple frozenset _frombuffer";

/// Whether what a call of this returned has a state that BUILD sets, when it is written by the program that it belongs to.
pub(super) fn has_state(module: &str, name: &str) -> bool {
    // Attributes of torch in small letters are dtypes, layouts and the like.
    let is_value = module == "torch" && name.starts_with(|first: char| first.is_ascii_lowercase());
    !is_value && !words::has(CALLS_ONLY, name)
}

/// What a call of an harmless class or function takes from the instructions that fill containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fills {
    Dict,
    List,
    Set,
    /// None of them: it is not a container.
    Nothing,
    /// Any of them: a class that is not known.
    Any,
}

/// How what a call of an harmless class or function returned is filled.
pub(super) fn fills(module: &str, name: &str) -> Fills {
    match (module, name) {
        ("collections", "OrderedDict" | "Counter" | "defaultdict") | ("builtins", "dict") => Fills::Dict,
        ("collections", "deque") | ("builtins", "list") => Fills::List,
        ("builtins", "set") => Fills::Set,
        _ => Fills::Nothing,
    }
}

/// What a dict that makes missing values may make them by.
pub(super) fn is_factory(module: &str, name: &str) -> bool {
    match module {
        "builtins" => {
            matches!(name, "list" | "dict" | "int" | "float" | "set" | "str" | "tuple" | "bool" | "bytes" | "frozenset")
        }
        "collections" => matches!(name, "OrderedDict" | "Counter" | "defaultdict" | "deque"),
        _ => false,
    }
}

/// Whether a state that has this key changes what its object is.
pub(super) fn is_special_key(key: &str) -> bool {
    words::has(SPECIAL_KEYS, key)
}
