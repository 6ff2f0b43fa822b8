//! Names in templates: which are Python's own insides, and which objects of Jinja and of web frameworks lead there.

use crate::words;

/// Attributes with two underscores by which one gets from a value to the rest of Python.
const INSIDES: &str = "
    __class__ __bases__ __base__ __mro__ __subclasses__ __globals__ __builtins__ __import__ __init__ __dict__ __getattribute__ __getattr__
    __getitem__ __call__ __code__ __closure__ __func__ __self__ __module__ __loader__ __spec__ __reduce__ __reduce_ex__ __new__ __del__
    __wrapped__ __kwdefaults__ __defaults__ __enter__ __exit__ __init_subclass__ __set_name__ __doc__ __name__";
/// Attributes without underscores that lead there as well.
const FRAMES: &str = "
    mro gi_frame gi_code cr_frame cr_code ag_frame ag_code f_globals f_locals f_builtins f_back tb_frame tb_next func_globals func_code
    co_consts popen import_module";
/// Classes and functions that every template of Jinja has, which no chat template looks into.
pub(super) const OWN: [&str; 5] = ["lipsum", "cycler", "joiner", "namespace", "self"];
/// Objects that web frameworks give their templates.
pub(super) const WEB: [&str; 7] = ["request", "config", "session", "g", "app", "url_for", "get_flashed_messages"];

/// Whether an attribute of this name leads into Python's insides.
pub(super) fn is_inside(name: &str) -> bool {
    (name.starts_with("__") && name.len() > 2)
        || name.starts_with('_') && name.contains("__")
        || words::has(FRAMES, name)
}

/// The name of an inside that this text is; not `__start__`, which is a token of a model.
pub(super) fn inside_in(text: &str) -> Option<&'static str> {
    words::each(INSIDES).find(|inside| text == *inside)
}

/// The name of an inside that a string to be filled in has: `'{0.__class__}'.format(x)`.
pub(super) fn inside_of_format(text: &str) -> Option<&'static str> {
    words::each(INSIDES).find(|inside| {
        text.match_indices(inside).any(|(at, _)| text.get(..at).is_some_and(|before| before.ends_with(['.', '['])))
    })
}

/// The name of an inside anywhere in a string, where nothing is known of its structure.
pub(super) fn inside_anywhere(text: &str) -> Option<&'static str> {
    let frames = || words::each(FRAMES).find(|frame| text.contains(&format!(".{frame}")));
    words::each(INSIDES).find(|inside| text.contains(inside)).or_else(frames)
}
