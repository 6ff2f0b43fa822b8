//! Which calls of a program are dangerous, and how: by the full names of Python's own modules and of well-known libraries.

/// What a call can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Danger {
    /// It changes files, or imports what a string names.
    System,
    /// It loads a pickle, which can call anything.
    Unpickle,
    /// It reaches the network.
    Network,
    /// It runs a program, or code that is made as the program runs.
    Execute,
    /// It runs code that was encoded, or is fetched, so that nobody reads it.
    Hidden,
}

impl Danger {
    /// What it does, for a sentence.
    pub(in super::super) fn does(self) -> &'static str {
        match self {
            Self::System => "reaches the system",
            Self::Unpickle => "loads a pickle",
            Self::Network => "reaches the network",
            Self::Execute => "runs programs or code",
            Self::Hidden => "runs encoded or fetched code",
        }
    }
}

/// Functions by their full names. Mentioning one is enough: it may be called under another name.
const EXECUTE: [&str; 67] = [
    "exec",
    "eval",
    "execfile",
    "os.system",
    "os.popen",
    "os.popen2",
    "os.popen3",
    "os.popen4",
    "os.execl",
    "os.execle",
    "os.execlp",
    "os.execlpe",
    "os.execv",
    "os.execve",
    "os.execvp",
    "os.execvpe",
    "os.spawnl",
    "os.spawnle",
    "os.spawnlp",
    "os.spawnlpe",
    "os.spawnv",
    "os.spawnve",
    "os.spawnvp",
    "os.spawnvpe",
    "os.posix_spawn",
    "os.posix_spawnp",
    "os.startfile",
    "os.dup2",
    "subprocess.run",
    "subprocess.call",
    "subprocess.Popen",
    "subprocess.check_call",
    "subprocess.check_output",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "commands.getoutput",
    "commands.getstatusoutput",
    "pty.spawn",
    "ctypes.CDLL",
    "ctypes.PyDLL",
    "ctypes.WinDLL",
    "ctypes.cdll",
    "ctypes.cdll.LoadLibrary",
    "ctypes.pythonapi",
    "ctypes.windll",
    "code.interact",
    "code.InteractiveInterpreter",
    "code.InteractiveConsole",
    "runpy.run_path",
    "runpy.run_module",
    "marshal.load",
    "marshal.loads",
    "types.CodeType",
    "types.FunctionType",
    "imp.load_source",
    "imp.load_dynamic",
    "asyncio.create_subprocess_exec",
    "asyncio.create_subprocess_shell",
    "torch.utils.cpp_extension.load",
    "torch.utils.cpp_extension.load_inline",
    "torch.ops.load_library",
    "torch.classes.load_library",
    "torch.hub.load",
    "pip.main",
    "pip._internal.main",
    "distutils.spawn.spawn",
    "_posixsubprocess.fork_exec",
];
const UNPICKLE: [&str; 27] = [
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "_pickle.load",
    "_pickle.loads",
    "cPickle.load",
    "cPickle.loads",
    "dill.load",
    "dill.loads",
    "cloudpickle.load",
    "cloudpickle.loads",
    "joblib.load",
    "torch.load",
    "torch.serialization.load",
    "pandas.read_pickle",
    "pandas.io.pickle.read_pickle",
    "yaml.load",
    "yaml.load_all",
    "yaml.unsafe_load",
    "yaml.full_load",
    "shelve.open",
    "jsonpickle.decode",
    "numpy.load",
    "pickle5.loads",
    "pickle5.load",
    "sklearn.externals.joblib.load",
    "marshmallow_pickle.loads",
];
const SYSTEM: [&str; 20] = [
    "os.remove",
    "os.unlink",
    "os.rmdir",
    "os.removedirs",
    "os.rename",
    "os.replace",
    "os.chmod",
    "os.chown",
    "os.symlink",
    "os.kill",
    "os.putenv",
    "shutil.rmtree",
    "shutil.move",
    "shutil.copyfile",
    "importlib.import_module",
    "__import__",
    "importlib.util.spec_from_file_location",
    "sys.settrace",
    "atexit.register",
    "compile",
];
/// Modules whose functions reach the network when they are called.
const NETWORK: [&str; 25] = [
    "socket",
    "urllib.request",
    "urllib2",
    "requests",
    "httpx",
    "aiohttp",
    "http.client",
    "httplib",
    "ftplib",
    "smtplib",
    "poplib",
    "imaplib",
    "telnetlib",
    "paramiko",
    "websocket",
    "websockets",
    "pycurl",
    "wget",
    "gdown",
    "ssl",
    "urllib3",
    "webbrowser",
    "xmlrpc.client",
    "socketserver",
    "http.server",
];
const NETWORK_FUNCTIONS: [&str; 4] =
    ["urllib.urlopen", "urllib.urlretrieve", "torch.hub.download_url_to_file", "torch.hub.load_state_dict_from_url"];
/// What of those modules reaches nothing.
const HARMLESS: [&str; 11] = [
    "socket.gethostname",
    "socket.getfqdn",
    "socket.timeout",
    "socket.error",
    "socket.htons",
    "socket.ntohs",
    "socket.inet_aton",
    "urllib.request.quote",
    "urllib.request.pathname2url",
    "ssl.SSLError",
    "urllib3.disable_warnings",
];
/// Modules of which an attribute of an unknown name is not taken for a good reason.
pub(super) const ROOTS: [&str; 14] = [
    "os",
    "posix",
    "nt",
    "sys",
    "builtins",
    "__builtins__",
    "__builtin__",
    "subprocess",
    "importlib",
    "ctypes",
    "socket",
    "pty",
    "marshal",
    "pickle",
];
/// Words in an argument that show that it is decoded or fetched.
pub(super) const DECODES: [&str; 22] = [
    "b64decode",
    "b32decode",
    "b16decode",
    "a85decode",
    "b85decode",
    "decodebytes",
    "decodestring",
    "fromhex",
    "unhexlify",
    "decompress",
    "marshal",
    "codecs",
    "rot13",
    "rot_13",
    "urlopen",
    "requests.",
    "httpx.",
    "recv(",
    "unquote",
    "chr(",
    "bytes([",
    "[::-1]",
];

/// The name without the ways to it that lead to the same.
pub(super) fn plain(name: &str) -> String {
    let mut name = name.to_owned();
    for (prefix, other) in [
        ("builtins.", ""),
        ("__builtins__.", ""),
        ("__builtin__.", ""),
        ("posix.", "os."),
        ("nt.", "os."),
        ("np.", "numpy."),
    ] {
        if let Some(rest) = name.strip_prefix(prefix) {
            name = format!("{other}{rest}");
        }
    }
    // A module that another one has imported: `shutil.os.system`, `x.os.system`.
    for module in ["os", "subprocess", "builtins", "ctypes", "pickle", "socket"] {
        if let Some((_, rest)) = name.split_once(&format!(".{module}.")) {
            name = format!("{module}.{rest}");
        }
    }
    if let Some(rest) = name.strip_prefix("builtins.") { rest.to_owned() } else { name }
}

/// The danger of mentioning what has this name.
pub(super) fn of_mention(name: &str) -> Option<Danger> {
    let dangerous = EXECUTE.contains(&name) && !["types.FunctionType", "types.CodeType"].contains(&name);
    // Where loading a pickle is mentioned and not called, nothing is loaded yet; that it is handed on shows in a call.
    dangerous.then_some(Danger::Execute)
}

/// The danger of calling what has this name, whose arguments are these in the program.
pub(super) fn of_call(name: &str, arguments: &str) -> Option<Danger> {
    let has = |word: &str| arguments.contains(word);
    let squeezed = || arguments.split_whitespace().collect::<String>();
    if EXECUTE.contains(&name) {
        return Some(Danger::Execute);
    }
    // Functions that take an attribute by its name.
    if ["operator.attrgetter", "operator.methodcaller"].contains(&name) {
        let taken = arguments.split(|c: char| !c.is_alphanumeric() && c != '_');
        let dangerous = taken.filter(|word| !word.is_empty()).any(|word| {
            ["", "os.", "subprocess."].iter().any(|module| EXECUTE.contains(&format!("{module}{word}").as_str()))
        });
        return dangerous.then_some(Danger::Execute);
    }
    if UNPICKLE.contains(&name) {
        let safe = match name {
            "torch.load" | "torch.serialization.load" => squeezed().contains("weights_only=True"),
            "yaml.load" | "yaml.load_all" => has("SafeLoader") || has("BaseLoader"),
            "numpy.load" => !squeezed().contains("allow_pickle=") || squeezed().contains("allow_pickle=False"),
            _ => false,
        };
        return (!safe).then_some(Danger::Unpickle);
    }
    let network = NETWORK.iter().any(|module| name.strip_prefix(module).is_some_and(|rest| rest.starts_with('.')));
    let exception = name.ends_with("Error") || name.ends_with("Exception") || name.contains(".exceptions.");
    if (network && !HARMLESS.contains(&name) && !exception) || NETWORK_FUNCTIONS.contains(&name) {
        return Some(Danger::Network);
    }
    SYSTEM.contains(&name).then_some(Danger::System)
}
