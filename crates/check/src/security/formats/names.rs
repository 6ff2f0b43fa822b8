//! Names of Python's modules and functions by which a configuration reaches what is not the model's.

/// Modules that run commands, load code, or reach files and networks: no model needs one of them.
const DANGEROUS: [&str; 58] = [
    "os",
    "posix",
    "nt",
    "subprocess",
    "_posixsubprocess",
    "sys",
    "shutil",
    "pathlib",
    "io",
    "_io",
    "tempfile",
    "glob",
    "socket",
    "ssl",
    "urllib",
    "http",
    "ftplib",
    "smtplib",
    "requests",
    "webbrowser",
    "importlib",
    "imp",
    "runpy",
    "pkgutil",
    "pydoc",
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "code",
    "codeop",
    "types",
    "ctypes",
    "_ctypes",
    "pty",
    "pip",
    "ensurepip",
    "venv",
    "site",
    "timeit",
    "profile",
    "cProfile",
    "pdb",
    "bdb",
    "trace",
    "doctest",
    "unittest",
    "asyncio",
    "multiprocessing",
    "threading",
    "signal",
    "platform",
    "commands",
    "distutils",
];
/// Functions of Python itself that do the same.
const DANGEROUS_BUILTINS: [&str; 12] = [
    "eval",
    "exec",
    "execfile",
    "compile",
    "__import__",
    "open",
    "getattr",
    "setattr",
    "globals",
    "vars",
    "input",
    "breakpoint",
];
/// What stands in compiled code that runs commands or loads more code.
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
    DANGEROUS.contains(&first) || (is_builtin && name.split('.').any(|part| DANGEROUS_BUILTINS.contains(&part)))
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
