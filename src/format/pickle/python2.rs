//! Names of Python 2 in pickles of protocols 0 to 2: Python 3 writes them into such files, and maps them to its own names on import.
//!
//! The tables are those of CPython's `_compat_pickle`, with which a test compares them. For example, torch.save writes `subprocess.Popen` as
//! `commands.Popen`. Messages and verdicts use the name that Python 3 imports.

/// The highest protocol with names of Python 2.
pub const LAST_PROTOCOL: u8 = 2;

/// Modules, and their current names.
#[rustfmt::skip]
const MODULES: [(&str, &str); 55] = [
    ("__builtin__", "builtins"), ("copy_reg", "copyreg"), ("Queue", "queue"), ("SocketServer", "socketserver"),
    ("ConfigParser", "configparser"), ("repr", "reprlib"), ("tkFileDialog", "tkinter.filedialog"),
    ("tkSimpleDialog", "tkinter.simpledialog"), ("tkColorChooser", "tkinter.colorchooser"), ("tkCommonDialog", "tkinter.commondialog"),
    ("Dialog", "tkinter.dialog"), ("Tkdnd", "tkinter.dnd"), ("tkFont", "tkinter.font"), ("tkMessageBox", "tkinter.messagebox"),
    ("ScrolledText", "tkinter.scrolledtext"), ("Tkconstants", "tkinter.constants"), ("Tix", "tkinter.tix"), ("ttk", "tkinter.ttk"),
    ("Tkinter", "tkinter"), ("markupbase", "_markupbase"), ("_winreg", "winreg"), ("thread", "_thread"), ("dummy_thread", "_dummy_thread"),
    ("dbhash", "dbm.bsd"), ("dumbdbm", "dbm.dumb"), ("dbm", "dbm.ndbm"), ("gdbm", "dbm.gnu"), ("xmlrpclib", "xmlrpc.client"),
    ("SimpleXMLRPCServer", "xmlrpc.server"), ("httplib", "http.client"), ("htmlentitydefs", "html.entities"), ("HTMLParser", "html.parser"),
    ("Cookie", "http.cookies"), ("cookielib", "http.cookiejar"), ("BaseHTTPServer", "http.server"), ("test.test_support", "test.support"),
    ("commands", "subprocess"), ("urlparse", "urllib.parse"), ("robotparser", "urllib.robotparser"), ("urllib2", "urllib.request"),
    ("anydbm", "dbm"), ("_abcoll", "collections.abc"), ("cPickle", "pickle"), ("_elementtree", "xml.etree.ElementTree"),
    ("FileDialog", "tkinter.filedialog"), ("SimpleDialog", "tkinter.simpledialog"), ("DocXMLRPCServer", "xmlrpc.server"),
    ("SimpleHTTPServer", "http.server"), ("CGIHTTPServer", "http.server"), ("UserDict", "collections"), ("UserList", "collections"),
    ("UserString", "collections"), ("whichdb", "dbm"), ("StringIO", "io"), ("cStringIO", "io"),
];

/// Names that moved to another module than the rest of theirs, or changed: before, and now.
#[rustfmt::skip]
const NAMES: [(&str, &str, &str, &str); 37] = [
    ("__builtin__", "xrange", "builtins", "range"), ("__builtin__", "reduce", "functools", "reduce"),
    ("__builtin__", "intern", "sys", "intern"), ("__builtin__", "unichr", "builtins", "chr"), ("__builtin__", "unicode", "builtins", "str"),
    ("__builtin__", "long", "builtins", "int"), ("itertools", "izip", "builtins", "zip"), ("itertools", "imap", "builtins", "map"),
    ("itertools", "ifilter", "builtins", "filter"), ("itertools", "ifilterfalse", "itertools", "filterfalse"),
    ("itertools", "izip_longest", "itertools", "zip_longest"), ("UserDict", "IterableUserDict", "collections", "UserDict"),
    ("_socket", "fromfd", "socket", "fromfd"), ("_multiprocessing", "Connection", "multiprocessing.connection", "Connection"),
    ("multiprocessing.process", "Process", "multiprocessing.context", "Process"),
    ("multiprocessing.forking", "Popen", "multiprocessing.popen_fork", "Popen"),
    ("urllib", "ContentTooShortError", "urllib.error", "ContentTooShortError"), ("urllib", "getproxies", "urllib.request", "getproxies"),
    ("urllib", "pathname2url", "urllib.request", "pathname2url"), ("urllib", "quote_plus", "urllib.parse", "quote_plus"),
    ("urllib", "quote", "urllib.parse", "quote"), ("urllib", "unquote_plus", "urllib.parse", "unquote_plus"),
    ("urllib", "unquote", "urllib.parse", "unquote"), ("urllib", "url2pathname", "urllib.request", "url2pathname"),
    ("urllib", "urlcleanup", "urllib.request", "urlcleanup"), ("urllib", "urlencode", "urllib.parse", "urlencode"),
    ("urllib", "urlopen", "urllib.request", "urlopen"), ("urllib", "urlretrieve", "urllib.request", "urlretrieve"),
    ("urllib2", "HTTPError", "urllib.error", "HTTPError"), ("urllib2", "URLError", "urllib.error", "URLError"),
    ("multiprocessing", "AuthenticationError", "multiprocessing.context", "AuthenticationError"),
    ("multiprocessing", "BufferTooShort", "multiprocessing.context", "BufferTooShort"),
    ("multiprocessing", "ProcessError", "multiprocessing.context", "ProcessError"),
    ("multiprocessing", "TimeoutError", "multiprocessing.context", "TimeoutError"), ("__builtin__", "basestring", "builtins", "str"),
    ("socket", "_socketobject", "socket", "SocketType"), ("exceptions", "StandardError", "builtins", "Exception"),
];

/// The names of the module `exceptions`, which are built in now.
const EXCEPTIONS: &str = "
    ArithmeticError AssertionError AttributeError BaseException BufferError BytesWarning DeprecationWarning EOFError EnvironmentError
    Exception FloatingPointError FutureWarning GeneratorExit IOError ImportError ImportWarning IndentationError IndexError KeyError
    KeyboardInterrupt LookupError MemoryError NameError NotImplementedError OSError OverflowError PendingDeprecationWarning
    ReferenceError RuntimeError RuntimeWarning StopIteration SyntaxError SyntaxWarning SystemError SystemExit TabError TypeError
    UnboundLocalError UnicodeDecodeError UnicodeEncodeError UnicodeError UnicodeTranslateError UnicodeWarning UserWarning ValueError
    Warning ZeroDivisionError";

/// Module and name as Python 3 imports them; `None` if they are the same.
pub fn renamed<'a>(module: &'a str, name: &'a str) -> Option<(&'a str, &'a str)> {
    if let Some(row) = NAMES.iter().find(|row| (row.0, row.1) == (module, name)) {
        return Some((row.2, row.3));
    }
    if module == "exceptions" && EXCEPTIONS.split_whitespace().any(|listed| listed == name) {
        return Some(("builtins", name));
    }
    MODULES.iter().find(|row| row.0 == module).map(|row| (row.1, name))
}

#[cfg(test)]
mod tests {
    use super::renamed;

    #[test]
    fn names_of_python_2_are_those_that_python_3_imports() {
        for (module, name, now) in [
            ("commands", "Popen", ("subprocess", "Popen")),
            ("__builtin__", "eval", ("builtins", "eval")),
            ("__builtin__", "reduce", ("functools", "reduce")),
            ("cPickle", "loads", ("pickle", "loads")),
            ("exceptions", "StandardError", ("builtins", "Exception")),
            ("exceptions", "ValueError", ("builtins", "ValueError")),
            ("urllib", "urlopen", ("urllib.request", "urlopen")),
            ("UserDict", "DictMixin", ("collections", "DictMixin")),
        ] {
            assert_eq!(renamed(module, name), Some(now), "{module}.{name}");
        }
        for (module, name) in [("subprocess", "Popen"), ("exceptions", "Mine"), ("urllib", "request"), ("os", "system")]
        {
            assert_eq!(renamed(module, name), None, "{module}.{name}");
        }
    }
}
