//! Names of Python's modules and functions by which a configuration reaches what is not the model's.

use crate::dangerous;

/// Modules that have nothing to do with a model that a program saved, though a person may name them in a configuration.
const OTHER_MODULES: [&str; 5] = ["glob", "joblib", "pathlib", "signal", "threading"];
/// What is in compiled code that runs commands or loads more code.
const DANGEROUS_BYTES: [&[u8]; 14] = [
    b"system",
    b"popen",
    b"subprocess",
    b"__import__",
    b"exec",
    b"eval",
    b"socket",
    b"urllib",
    b"requests",
    b"pickle",
    b"marshal",
    b"builtins",
    b"\x02os",
    b"execve",
];

/// Whether this name of this module runs commands, loads code, or reaches files or networks.
pub(super) fn is_dangerous(module: &str, name: &str) -> bool {
    let first = module.split('.').next().unwrap_or(module);
    let is_builtin = matches!(first, "builtins" | "__builtin__" | "");
    dangerous::is_module(first)
        || OTHER_MODULES.contains(&first)
        || (is_builtin && name.split('.').any(dangerous::is_function))
}

/// The first name in compiled code that runs commands, loads code, or reaches networks.
pub(super) fn dangerous_in(code: &[u8]) -> Option<&'static str> {
    let found = DANGEROUS_BYTES.into_iter().find(|name| memchr::memmem::find(code, name).is_some())?;
    std::str::from_utf8(found).ok().map(|name| name.trim_start_matches('\x02'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_known_with_their_submodules() {
        assert!(is_dangerous("os.path", "join") && is_dangerous("builtins", "eval") && is_dangerous("", "__import__"));
        assert!(
            !is_dangerous("keras.layers", "Dense") && !is_dangerous("builtins", "dict") && !is_dangerous("osgeo", "x")
        );
    }
}
