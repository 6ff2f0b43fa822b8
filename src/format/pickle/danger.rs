//! Globals that do harm when they are called. Nothing is ever called here: the list only lets a listing say which names to worry about.

/// Modules of which everything counts, their submodules included. Each runs code, starts processes, or reaches files or the network.
#[rustfmt::skip]
const MODULES: [&str; 60] = [
    "aiohttp", "asyncio", "bdb", "cProfile", "cloudpickle", "code", "codeop", "commands", "concurrent", "ctypes",
    "dill", "distutils", "doctest", "ensurepip", "ftplib", "functools", "gc", "getpass", "glob", "http", "httplib",
    "idlelib", "importlib", "inspect", "io", "joblib", "lib2to3", "linecache", "marshal", "mmap", "multiprocessing",
    "nt", "ntpath", "operator", "os", "pathlib", "pdb", "pickle", "pip", "pkgutil", "posix", "posixpath", "profile",
    "pty", "pydoc", "requests", "runpy", "setuptools", "shutil", "signal", "site", "smtplib", "socket", "subprocess",
    "sys", "tempfile", "timeit", "trace", "urllib", "webbrowser",
];
/// More of them, whose names are not words of the first list's kind.
#[rustfmt::skip]
const MORE_MODULES: [&str; 22] = [
    "_io", "_osx_support", "_pickle", "_posixsubprocess", "_pyrepl", "_socket", "_thread", "_winapi", "fileinput",
    "imp", "imaplib", "logging", "poplib", "popen2", "sqlite3", "ssl", "telnetlib", "test", "threading", "types",
    "venv", "zipimport",
];
/// What does harm among the built-in names.
#[rustfmt::skip]
const BUILTINS: [&str; 17] = [
    "__import__", "apply", "breakpoint", "compile", "delattr", "eval", "exec", "execfile", "file", "getattr",
    "globals", "input", "locals", "open", "reload", "setattr", "vars",
];
/// Submodules that run code or unpickle without limits, though what stands above them does not.
#[rustfmt::skip]
const SUBMODULES: [&str; 16] = [
    "numpy.f2py", "numpy.testing", "numpy.distutils", "numpy.load", "torch.hub", "torch.jit", "torch.load",
    "torch.multiprocessing", "torch.serialization.load", "torch.storage._load_from_bytes",
    "torch.utils._config_module", "torch.utils.bottleneck", "torch.utils.collect_env", "torch.utils.cpp_extension",
    "torch._dynamo", "torch._inductor",
];
/// Parts of a dotted name that lead from a harmless object to anything.
#[rustfmt::skip]
const STEPS: [&str; 10] = [
    "__builtins__", "__globals__", "__subclasses__", "__getattribute__", "__import__", "__reduce__", "__loader__",
    "__code__", "__dict__", "__init__",
];

/// Whether calling this global would run code, open files or reach the network.
pub(super) fn is_dangerous(module: &str, name: &str) -> bool {
    let root = module.split('.').next().unwrap_or_default();
    if MODULES.contains(&root) || MORE_MODULES.contains(&root) {
        return true;
    }
    if matches!(root, "builtins" | "__builtin__" | "__builtins__") {
        return BUILTINS.contains(&name.split('.').next().unwrap_or_default()) || name.contains('.');
    }
    let full = format!("{module}.{name}");
    let below = |top: &str| full.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    if SUBMODULES.iter().any(|top| below(top)) {
        return true;
    }
    // A dotted name walks attributes: a module that imports `os` has it as one.
    name.split('.').any(|step| STEPS.contains(&step))
        || (name.contains('.') && name.split('.').any(|step| MODULES.contains(&step) || MORE_MODULES.contains(&step)))
}

#[cfg(test)]
mod tests {
    use super::is_dangerous;

    #[test]
    fn what_runs_code_is_dangerous_under_every_name_it_goes_by() {
        for (module, name) in [
            ("os", "system"),
            ("posix", "system"),
            ("nt", "system"),
            ("builtins", "eval"),
            ("__builtin__", "exec"),
            ("pkgutil", "resolve_name"),
            ("asyncio.unix_events", "_UnixSubprocessTransport._start"),
            ("os.path", "os.system"),
            ("torch.serialization", "os.system"),
            ("torch._utils", "_rebuild_tensor.__globals__"),
            ("torch.storage", "_load_from_bytes"),
            ("torch.jit.unsupported_tensor_ops", "execWrapper"),
            ("numpy.testing._private.utils", "runstring"),
        ] {
            assert!(is_dangerous(module, name), "{module}.{name}");
        }
        for (module, name) in
            [("collections", "deque"), ("__main__", "Model"), ("osmosis", "system"), ("datetime", "date")]
        {
            assert!(!is_dangerous(module, name), "{module}.{name}");
        }
    }
}
