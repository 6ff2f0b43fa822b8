//! What of Python itself no configuration of a model names for a good reason, whatever loader it is for.

/// Modules that run commands, load code, or reach files and networks.
const MODULES: &str = "
    _ctypes _io _pickle _posixsubprocess asyncio atexit bdb cPickle cProfile cloudpickle code codeop commands ctypes dill distutils doctest
    ensurepip ftplib http idlelib imp importlib io jsonpickle marshal multiprocessing nt os pdb pickle pip pkgutil platform posix profile pty
    pydoc requests runpy shelve shutil site smtplib socket ssl subprocess sys tempfile timeit trace types unittest urllib venv webbrowser";
/// Functions that do so without a module.
const FUNCTIONS: &str = "eval exec execfile compile __import__ open getattr setattr globals vars input breakpoint";

/// Whether this module of Python's own, without what is below it, runs commands, loads code, or reaches files and networks.
pub(crate) fn is_module(name: &str) -> bool {
    MODULES.split_whitespace().any(|module| module == name)
}

/// Whether this function of Python's own does.
pub(crate) fn is_function(name: &str) -> bool {
    FUNCTIONS.split_whitespace().any(|function| function == name)
}
