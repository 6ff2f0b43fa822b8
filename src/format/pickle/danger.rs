//! Globals that do harm when they are called. Nothing is ever called here: the list only lets a listing say which names to worry about.

use super::global::listed;

/// What runs code, starts processes, unpickles without limits, or reaches files or the network, with everything below it.
const HARMFUL: &str = "
    _io _osx_support _pickle _posixsubprocess _pyrepl _socket _thread _winapi aiohttp asyncio bdb cProfile cloudpickle code codeop
    commands concurrent ctypes dill distutils doctest ensurepip fileinput ftplib functools gc getpass glob http httplib idlelib imaplib
    imp importlib inspect io joblib lib2to3 linecache logging marshal mmap multiprocessing nt ntpath operator os pathlib pdb pickle pip
    pkgutil popen2 poplib posix posixpath profile pty pydoc requests runpy setuptools shutil signal site smtplib socket sqlite3 ssl
    subprocess sys telnetlib tempfile test threading timeit trace types urllib venv webbrowser zipimport
    numpy.distutils numpy.f2py numpy.load numpy.testing torch._dynamo torch._inductor torch.hub torch.jit torch.load
    torch.multiprocessing torch.serialization.load torch.storage._load_from_bytes torch.utils._config_module torch.utils.bottleneck
    torch.utils.collect_env torch.utils.cpp_extension";
/// What does harm among the built-in names.
const BUILTINS: &str = "__import__ apply breakpoint compile delattr eval exec execfile file getattr globals input locals open reload setattr vars";
/// Parts of a dotted name that lead from a harmless object to anything.
const STEPS: &str = "__builtins__ __globals__ __subclasses__ __getattribute__ __import__ __reduce__ __loader__ __code__ __dict__ __init__";

/// Whether calling this global would run code, open files or reach the network.
pub(super) fn is_dangerous(module: &str, name: &str) -> bool {
    if matches!(module.split('.').next(), Some("builtins" | "__builtin__" | "__builtins__")) {
        return name.contains('.') || listed(BUILTINS, name);
    }
    let full = format!("{module}.{name}");
    let below = |top: &str| full.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    // A dotted name walks attributes: a module that imports `os` has it as one.
    let walks = |step: &str| listed(STEPS, step) || (name.contains('.') && listed(HARMFUL, step));
    HARMFUL.split_whitespace().any(below) || name.split('.').any(walks)
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
