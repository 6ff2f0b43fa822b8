//! What runs code, starts programs, reaches files, the network or memory when it is called, and what leads to such. The list makes a verdict
//! sharper, and is not what keeps the rest out: a name that is on no list needs trust.

use std::collections::HashSet;
use std::sync::LazyLock;

/// Modules in which everything is, and everything below them. What is harmless in one of them stands on the other lists, which come first.
const MODULES: &str = "
    os posix nt ntpath posixpath subprocess _posixsubprocess commands popen2 sys _winapi winreg _winreg msvcrt
    importlib _frozen_importlib _frozen_importlib_external _imp imp runpy pkgutil pydoc zipimport pkg_resources site sitecustomize usercustomize
    ctypes _ctypes cffi _cffi_backend mmap gc ast dis
    socket _socket ssl _ssl socketserver select selectors _interpreters _xxsubinterpreters _xxinterpchannels interpreters concurrent
    shutil tempfile fileinput glob linecache io _io _pyio codeop code pty tty pipes crypt signal resource
    idlelib lib2to3 blib2to3 doctest timeit profile cProfile trace pdb bdb pstats tracemalloc faulthandler
    asyncio _asyncio multiprocessing _multiprocessing threading _thread thread sched
    webbrowser antigravity this urllib urllib2 http httplib ftplib smtplib smtpd poplib imaplib nntplib telnetlib xmlrpc wsgiref cgi cgitb
    requests aiohttp httpx urllib3 paramiko fabric
    pip ensurepip venv virtualenv distutils setuptools _distutils_hack wheel easy_install conda
    _pyrepl _osx_support _aix_support _sysconfigdata sysconfig _bootsubprocess _bootlocale
    test unittest nose tkinter turtle turtledemo curses readline rlcompleter cmd
    marshal pickle _pickle cPickle pickle5 pickletools shelve dbm dill cloudpickle jsonpickle joblib.externals copyreg copy_reg
    sqlite3 _sqlite3 getpass platform atexit builtins __builtin__ __builtins__ plistlib netrc
    logging.config logging.handlers xml.sax xml.etree.ElementTree zipfile tarfile gzip bz2 lzma
    hydra omegaconf.resolvers zope.dottedname email._policybase django werkzeug flask celery jinja2 mako tornado twisted IPython ipykernel pexpect ptyprocess sh plumbum
    peewee psutil cython Cython numba.core llvmlite pyximport
    numpy.f2py numpy.testing numpy.distutils numpy.ctypeslib numpy.lib.npyio numpy.lib._npyio_impl numpy.lib.format numpy.lib.utils
    numpy.compat numpy.load numpy.memmap numpy.fromfile numpy.save
    scipy.weave scipy._lib._ccallback pandas.eval pandas.io pandas.core.computation pandas.read_pickle
    torch.hub torch._inductor torch._dynamo torch.utils.cpp_extension torch.utils.collect_env torch.utils.bottleneck torch.utils._config_module
    torch.utils.data.datapipes torch.utils.hipify torch.utils.model_dump torch.utils.benchmark torch.utils.show_pickle torch.utils.tensorboard
    torch.utils._content_store torch.utils._import_utils torch.utils.model_zoo torch.utils.file_baton torch.utils.jit
    torch.fx.graph_module torch.fx._symbolic_trace torch.fx.experimental torch.fx.interpreter torch.fx.graph torch._functorch 
    torch.jit torch._jit_internal torch._sources torch.package torch.multiprocessing torch.testing torch.distributed.launcher
    torch.distributed.elastic torch.distributed.run torch.distributed.launch torch.distributed.rpc torch._ops torch._classes torch.ops
    torch.classes torch.backends.xeon torch.cuda._gpu_trace 
    torch._lobpcg torch.load torch.save torch.compile torch.from_file torch._weights_only_unpickler torch._appdirs torchvision.datasets
    torchgen torch.serialization.load torch.serialization.save torch.serialization._load torch.serialization._legacy_load
    transformers.dynamic_module_utils transformers.utils.hub transformers.pipelines transformers.pipeline
    huggingface_hub datasets.load joblib.load joblib.dump joblib.numpy_pickle.load joblib.numpy_pickle_utils joblib.memory joblib.parallel
    keras.utils.get_file keras.src.utils.file_utils tensorflow.keras.utils.get_file tensorflow.io tensorflow.raw_ops
    tensorflow.python.lib.io tensorflow.load_library tensorflow.load_op_library
    skops.io yaml ruamel.yaml ruamel_yaml";

/// Names that are, in modules whose others may be harmless.
const NAMES: &[(&str, &str)] = &[
    ("operator", "attrgetter methodcaller itemgetter call setitem delitem iadd iconcat"),
    ("_operator", "attrgetter methodcaller itemgetter call setitem delitem iadd iconcat"),
    ("functools", "reduce partialmethod cached_property singledispatch wraps update_wrapper lru_cache _make_key"),
    (
        "types",
        "FunctionType LambdaType CodeType MethodType ModuleType BuiltinFunctionType CellType new_class prepare_class coroutine resolve_bases",
    ),
    ("itertools", "starmap accumulate takewhile dropwhile groupby filterfalse"),
    ("logging", "FileHandler basicConfig config Handler StreamHandler"),
    (
        "uuid",
        "_get_command_stdout _popen getnode _ifconfig_getter _ip_getter _arp_getter _lanscan_getter _netstat_getter main",
    ),
    ("random", "_os _urandom"),
    ("weakref", "finalize"),
    ("contextlib", "ExitStack redirect_stdout chdir"),
    ("typing", "get_type_hints ForwardRef _eval_type _GenericAlias"),
    ("annotationlib", "ForwardRef get_annotations call_annotate_function"),
    ("collections", "namedtuple"),
    ("dataclasses", "make_dataclass _create_fn"),
    ("enum", "_simple_enum global_enum"),
    ("string", "Formatter"),
    ("cgi", "FieldStorage"),
    ("codecs", "open decode encode lookup register StreamReaderWriter EncodedFile"),
    ("_codecs", "decode lookup register"),
    ("encodings", "search_function"),
    (
        "numpy",
        "load save savez savetxt loadtxt genfromtxt fromfile memmap fromregex DataSource apply_along_axis vectorize frompyfunc fromfunction piecewise",
    ),
    ("torch", "load save compile from_file hub jit ops classes library vmap import_ir_module"),
    ("torch.serialization", "load save _load _legacy_load _save add_safe_globals register_package find_package_path"),
    ("torch.nn.modules.lazy", "LazyModuleMixin"),
    ("torch.utils.data", "DataLoader"),
    ("torch.utils.checkpoint", "checkpoint"),
    ("torch.utils._python_dispatch", "return_and_correct_aliasing"),
    ("torch.distributed.checkpoint.utils", "_api_bc_check"),
    ("joblib", "load dump Memory Parallel delayed"),
    ("joblib.numpy_pickle", "load dump _unpickle"),
    ("pandas", "eval read_pickle read_csv read_json read_html read_sql read_excel"),
    ("nltk.data", "load"),
    ("sklearn.utils", "_joblib"),
    ("transformers.utils", "import_utils cached_file"),
    ("tensorflow", "load_library load_op_library py_function numpy_function"),
    ("tensorflow.python.ops.script_ops", "eager_py_func numpy_function"),
];

/// Attributes that lead from what is harmless to what is not, or change what objects are.
const ATTRIBUTES: &str = "system popen execv execve spawnl spawnv fork eval exec execfile compile open __import__ import_module run_module run_path
    __globals__ __builtins__ __subclasses__ __getattribute__ __getattr__ __reduce__ __reduce_ex__ __loader__ __spec__ __code__ __dict__
    __class__ __base__ __bases__ __mro__ __init__ __call__ __setattr__ __delattr__ __setstate__ __init_subclass__ __func__ __self__ __wrapped__
    __closure__ __defaults__ __set_name__ __del__ __module__ __file__ __path__ __enter__ __exit__ mro func_globals gi_frame f_globals f_builtins
    tb_frame load_library getattr setattr globals locals vars breakpoint check_output check_call Popen
    import_string import_object import_item import_class import_attr import_from_string _import_class locate resolve_name load_object symbol_by_name";

/// Keys of a state by which an object becomes another one, or calls what is there.
const SPECIAL_KEYS: &str = "__setstate__ __class__ __builtins__ __code__ __globals__ __getattribute__ __getattr__ __reduce__ __reduce_ex__ __import__
    __call__ __new__ __del__ __defaults__ __kwdefaults__ __closure__ __bases__ __mro__ __subclasses__ __loader__ __spec__ __path__
    __torch_function__ __torch_dispatch__ __array__ __array_ufunc__ __array_function__ __set_name__ __init_subclass__ __instancecheck__
    __eq__ __hash__ __getitem__ __setitem__ __missing__ __len__ __iter__ __next__ __enter__ __exit__ __get__ __set__ __repr__ __str__
    _backward_hooks.__setstate__";

/// The words of the lists: a pickle may name tens of thousands of things, each of which is looked for.
static MODULE_SET: LazyLock<HashSet<&str>> = LazyLock::new(|| MODULES.split_whitespace().collect());
static ATTRIBUTE_SET: LazyLock<HashSet<&str>> = LazyLock::new(|| ATTRIBUTES.split_whitespace().collect());
static NAME_SET: LazyLock<HashSet<(&str, &str)>> = LazyLock::new(|| super::names::pairs(NAMES));

/// Whether this is one of the list, or leads there.
pub(super) fn has(module: &str, name: &str) -> bool {
    super::names::is_below(&MODULE_SET, &format!("{module}.{name}"))
        || NAME_SET.contains(&(module, name))
        || name.split('.').any(is_attribute)
}

/// Whether an attribute of this name of anything is one.
pub(super) fn is_attribute(name: &str) -> bool {
    ATTRIBUTE_SET.contains(name) || MODULE_SET.contains(name) && !HARMLESS_AS_NAMES.contains(&name)
}

/// Modules whose names other things have as well, as attributes.
const HARMLESS_AS_NAMES: [&str; 10] =
    ["code", "test", "select", "this", "profile", "signal", "trace", "resource", "sh", "cmd"];

/// Whether a state that has this key changes what its object is.
pub(super) fn is_special_key(key: &str) -> bool {
    SPECIAL_KEYS.split_whitespace().any(|listed| listed == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_code_is_malicious_under_every_name_it_goes_by() {
        for (module, name) in [
            ("os", "system"),
            ("posix", "system"),
            ("nt", "system"),
            ("builtins", "eval"),
            ("builtins", "__import__"),
            ("pkgutil", "resolve_name"),
            ("os.path", "os.system"),
            ("torch.serialization", "os"),
            ("sklearn.utils", "sys"),
            ("torch.jit.unsupported_tensor_ops", "execWrapper"),
            ("numpy.testing._private.utils", "runstring"),
            ("operator", "attrgetter"),
            ("_operator", "methodcaller"),
            ("types", "CodeType"),
            ("logging", "FileHandler"),
            ("_io", "FileIO"),
        ] {
            assert!(has(module, name), "{module}.{name}");
        }
        for (module, name) in
            [("__main__", "Model"), ("osmosis", "run"), ("datetime", "date"), ("sklearn.tree._tree", "Tree")]
        {
            assert!(!has(module, name), "{module}.{name}");
        }
    }
}
