//! What of the one list of Python's names no configuration of a model, and no model of Keras or skops, has for a good reason.

use max_weights::format::pickle::Danger;
use max_weights::format::pickle::names::{exact, look_up};

/// Reasons for which a name runs code that programs and configurations have all the same.
const ELSEWHERE: [&str; 2] = ["calls", "gadget"];

/// Whether this name of this module runs commands, loads code, or reaches files or networks, independently of the loader. Built-in names
/// have no module.
pub(crate) fn is_dangerous(module: &str, name: &str) -> bool {
    let is_builtin = matches!(module.split('.').next(), Some("builtins" | "__builtin__" | ""));
    let entry =
        if is_builtin { name.split('.').find_map(|part| exact("builtins", part)) } else { look_up(module, name) };
    entry.is_some_and(|entry| match entry.danger {
        Danger::RunsCode => !ELSEWHERE.contains(&entry.reason),
        _ => entry.reason == "pickled",
    })
}

/// Whether it does so in a model that a program saved, into which paths and caches that a person may name in a configuration do not belong.
pub(crate) fn is_dangerous_in_model(module: &str, name: &str) -> bool {
    is_dangerous(module, name) || matches!(module.split('.').next(), Some("joblib" | "pathlib"))
}

#[cfg(test)]
mod tests {
    use super::{is_dangerous, is_dangerous_in_model};

    #[test]
    fn modules_are_known_with_their_submodules_and_built_in_names_by_themselves() {
        for (module, name) in [
            ("os.path", "join"),
            ("builtins", "eval"),
            ("", "__import__"),
            ("", "input"),
            ("builtins", "getattr"),
            ("torch.hub", "load"),
            ("hydra.utils", "instantiate"),
            ("yaml", "unsafe_load"),
            ("io", "BytesIO"),
        ] {
            assert!(is_dangerous(module, name), "{module}.{name}");
        }
        assert!(is_dangerous_in_model("pathlib", "Path") && !is_dangerous("pathlib", "Path"));
        for (module, name) in [
            ("keras.layers", "Dense"),
            ("builtins", "dict"),
            ("builtins", "my_activation"),
            ("osgeo", "x"),
            ("torch.utils.data", "DataLoader"),
            ("torch", "compile"),
            ("functools", "partial"),
            ("test", "Model"),
        ] {
            assert!(!is_dangerous(module, name), "{module}.{name}");
        }
    }
}
