"""Names that run code, reach into the system or find other names: one global and one call each (classes 1 to 7)."""


def _names(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


# Class 1: functions that run a command or a program directly.
DIRECT = _names("""
os.system os.popen os.execv os.spawnl os.posix_spawn posix.system posix.popen posix.execv nt.system subprocess.Popen
subprocess.run subprocess.call subprocess.check_call subprocess.check_output subprocess.getoutput
subprocess.getstatusoutput builtins.eval builtins.exec builtins.__import__ builtins.compile builtins.open
builtins.getattr builtins.breakpoint __builtin__.eval __builtin__.execfile __builtin__.compile __builtin__.apply
__builtin__.getattr commands.getoutput popen2.popen3 pty.spawn os.startfile os.remove os.execvpe
""")

# Class 2: the standard library and the packages installed with it.
STANDARD_LIBRARY = _names("""
idlelib.pyshell.ModifiedInterpreter.runcode idlelib.run.Executive.runcode idlelib.debugobj.ObjectTreeItem.SetText
idlelib.autocomplete.AutoComplete.get_entity idlelib.calltip.get_entity idlelib.calltip.Calltip.fetch_tip
idlelib.autocomplete.AutoComplete.fetch_completions lib2to3.pgen2.grammar.Grammar.loads
lib2to3.pgen2.pgen.ParserGenerator.make_label doctest.debug_script doctest.testsource doctest.debug_src
trace.Trace.run trace.Trace.runctx trace.Trace.runfunc profile.run profile.runctx profile.Profile.run
profile.Profile.runctx cProfile.run cProfile.runctx pstats.Stats timeit.timeit timeit.repeat timeit.main timeit.Timer
code.InteractiveInterpreter.runcode code.interact code.InteractiveConsole.push codeop.compile_command bdb.Bdb.run
bdb.Bdb.runeval bdb.Bdb.runcall pdb.run pdb.runeval pdb.Pdb.run pdb.runcall uuid._get_command_stdout uuid._popen
_osx_support._read_output _osx_support._find_build_tool _aix_support._read_cmd_output _pyrepl.pager.pipe_pager
_pyrepl.pager.tempfile_pager pydoc.pipepager pydoc.tempfilepager imaplib.IMAP4_stream ensurepip._run_pip
ensurepip.bootstrap pip.main pip._internal.main pip._internal.cli.main.main venv.create venv.EnvBuilder
test.support.run_in_subinterp test.support.script_helper.assert_python_ok distutils.file_util.write_file
distutils.spawn.spawn distutils.core.run_setup setuptools.sandbox.run_setup
asyncio.unix_events._UnixSubprocessTransport._start asyncio.subprocess.create_subprocess_shell
_posixsubprocess.fork_exec _interpreters.run_string _xxsubinterpreters.run_string _testcapi.run_in_subinterp
multiprocessing.util.spawnv_passfds multiprocessing.popen_fork.Popen multiprocessing.process.Process
site.execsitecustomize site.addpackage site.addsitedir atexit.register ctypes.CDLL ctypes.PyDLL ctypes.CFUNCTYPE
_ctypes.dlopen cffi.FFI.dlopen cloudpickle.cloudpickle._make_function cloudpickle.loads types.CodeType
types.FunctionType runpy.run_path runpy.run_module runpy._run_code runpy._run_module_code importlib.reload
imp.load_source imp.load_dynamic zipimport.zipimporter webbrowser.open webbrowser.GenericBrowser antigravity.geohash
turtle.mainloop platform.popen platform._syscmd_ver asyncore.loop smtpd.SMTPServer xmlrpc.server.SimpleXMLRPCServer
http.server.CGIHTTPRequestHandler cgi.test shutil.rmtree shutil.move shutil.copyfile shutil.chown tempfile.mktemp
pathlib.Path.write_text glob.glob linecache.getline fileinput.input threading.Thread threading.Timer
concurrent.futures.ProcessPoolExecutor sched.scheduler signal.signal gc.get_objects inspect.getattr_static
inspect._signature_fromstr sys.settrace sys.setprofile sys.modules.__setitem__ weakref.finalize
contextlib.ExitStack.callback dataclasses._create_fn collections.namedtuple typing.get_type_hints
typing.ForwardRef._evaluate string.Formatter.format ast.literal_eval compileall.compile_dir py_compile.compile
tabnanny.check symtable.symtable rlcompleter.Completer.attr_matches readline.set_completer cmd.Cmd.onecmd
sqlite3.connect dbm.open shelve.open curses.wrapper tkinter.Tcl nntplib.NNTP telnetlib.Telnet mailcap.findmatch
crypt.crypt unittest.main unittest.loader.TestLoader.loadTestsFromName _pickle.Unpickler marshal.loads bz2.open
gzip.open plistlib.load copyreg.__newobj__ copyreg._reconstructor copyreg.add_extension functools.singledispatch
functools.cached_property itertools.starmap builtins.map builtins.filter builtins.vars builtins.globals
builtins.locals builtins.delattr builtins.setattr builtins.type builtins.memoryview pyclbr.readmodule
modulefinder.ModuleFinder.run_script nturl2path.url2pathname wsgiref.simple_server.demo_app _signal.raise_signal
signal.raise_signal importlib.util.find_spec ctypes.util.find_library
""")

# Class 3: functions that compile a text.
TRAMPOLINES = _names("""
pkgutil.resolve_name importlib.import_module importlib.__import__ importlib._bootstrap._gcd_import pydoc.locate
pydoc.resolve pydoc.safeimport operator.attrgetter operator.methodcaller operator.itemgetter _operator.attrgetter
_operator.methodcaller _operator.itemgetter operator.call functools.partial functools.reduce functools.partialmethod
logging.config._resolve logging.config.dictConfig logging.config.BaseConfigurator.resolve unittest.mock._importer
unittest.mock._dot_lookup unittest.mock.patch werkzeug.utils.import_string django.utils.module_loading.import_string
hydra.utils.instantiate hydra.utils.get_method hydra.utils.call hydra._internal.utils._locate
email._policybase._extend_docstrings xml.sax._create_parser encodings.search_function codecs.lookup
celery.utils.imports.symbol_by_name zope.dottedname.resolve.resolve traitlets.utils.importstring.import_item
twisted.python.reflect.namedAny sphinx.util.import_object pyramid.util.DottedNameResolver.resolve
jsonpickle.unpickler.loadclass fsspec.registry._import_class
transformers.dynamic_module_utils.get_class_from_dynamic_module
""")

# Class 4: the libraries that models are built with.
LIBRARIES = _names("""
numpy.f2py.crackfortran.getlincoef numpy.f2py.crackfortran._eval_length numpy.f2py.crackfortran.param_eval
numpy.f2py.crackfortran.myeval numpy.f2py.diagnose.run numpy.f2py.compile numpy.testing._private.utils.runstring
numpy.testing.utils.runstring numpy.testing.measure numpy.distutils.exec_command.exec_command
numpy.distutils.cpuinfo.getoutput numpy.distutils.command.config.config._check_compiler numpy.load numpy.fromfile
numpy.memmap numpy.lib.npyio.DataSource numpy.ctypeslib.load_library torch._inductor.codecache.compile_file
torch._inductor.compile_worker.subproc_pool torch._inductor.runtime.compile_tasks._reload_python_module
torch.utils.collect_env.run torch.utils.bottleneck.__main__.run_prof torch.utils.bottleneck.__main__.run_cprofile
torch.utils.bottleneck.__main__.run_autograd_prof torch.utils._config_module.ConfigModule.load_config
torch.utils.data.datapipes.utils.decoder.basichandlers
torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_guards_expression torch._dynamo.guards.GuardBuilder.get
torch.hub.load torch.hub._load_local torch.hub.import_module torch.ops.load_library torch._ops._Ops.load_library
torch.classes.load_library torch.utils.cpp_extension.load torch.utils.cpp_extension.load_inline
torch.fx.graph_module._exec_with_source torch.fx.graph_module._forward_from_src
torch.fx.graph_module.reduce_graph_module torch.fx.graph_module.reduce_package_graph_module torch.jit.load
torch.jit.unsupported_tensor_ops.execWrapper torch._C._jit_import torch.load torch.package.PackageImporter
torch.serialization.load torch.onnx.utils._export torch.distributed.rpc.internal._internal_rpc_pickler.deserialize
torch.multiprocessing.spawn torch._weights_only_unpickler.Unpickler torch.storage._load_from_bytes
torch.distributed.elastic.multiprocessing.start_processes torch.utils.data.DataLoader torch.autograd.profiler.profile
torch.nn.modules.module.Module.register_forward_hook torch.library.custom_op torch._lobpcg.LOBPCG
sklearn.utils._joblib.load joblib.load joblib.memory.Memory joblib.numpy_pickle.load dill.loads
dill._dill._create_code dill._dill._import_module pandas.eval pandas.read_pickle pandas.core.computation.eval.eval
pandas.io.common.get_handle pandas.DataFrame.query scipy.weave.inline scipy.io.loadmat sympy.sympify
sympy.parsing.sympy_parser.parse_expr numexpr.evaluate tensorflow.io.read_file tensorflow.py_function
keras.models.load_model keras.layers.Lambda keras.utils.get_file tensorflow.python.keras.utils.data_utils.get_file
transformers.AutoModel.from_pretrained transformers.pipeline transformers.utils.import_utils._LazyModule
accelerate.commands.launch.main datasets.load_dataset mlflow.pyfunc.load_model cloudpickle.cloudpickle.subimport
xgboost.core._load_lib lightgbm.basic._load_lib jax.experimental.host_callback.call setuptools._distutils.spawn.spawn
pkg_resources.run_script gradio.Interface IPython.utils.process.system
IPython.core.interactiveshell.InteractiveShell.run_cell paramiko.ProxyCommand fabric.api.local sh.Command
plumbum.local pexpect.spawn invoke.run matplotlib.texmanager.TexManager fickling.hook.remove_hook
fickling.hook.deactivate_safe_ml_environment cloudpickle.cloudpickle._function_setstate
cloudpickle.cloudpickle._make_empty_cell
""")

# Class 5: functions that only read, write or send.
SIDE_EFFECTS = _names("""
ssl.get_server_certificate socket.create_connection socket.socket urllib.request.urlopen urllib.request.urlretrieve
smtplib.SMTP ftplib.FTP http.client.HTTPSConnection poplib.POP3 io.FileIO _io.FileIO io.open _io.open io.open_code
logging.FileHandler logging.handlers.SMTPHandler logging.handlers.HTTPHandler distutils.file_util.write_file
numpy.savetxt numpy.save numpy.ndarray.tofile torch.save torch.hub.download_url_to_file torch.from_file os.putenv
os.chmod os.unlink os.mkdir shutil.copytree zipfile.ZipFile tarfile.open requests.get requests.post
asyncio.open_connection xmlrpc.client.ServerProxy webbrowser.open_new_tab time.sleep faulthandler._sigsegv
""")

# Class 6: (module, dotted name): names reached through an allowed module.
DOTTED = [
    ("torch", "os.system"),
    ("torch", "serialization.os.system"),
    ("torch._utils", "sys.modules"),
    ("torch._utils", "torch.hub.load"),
    ("torch.nn.modules.linear", "math.__loader__.load_module"),
    ("numpy.core.multiarray", "os.system"),
    ("numpy._core.multiarray", "functools.partial"),
    ("numpy", "__builtins__.get"),
    ("numpy", "f2py.crackfortran.myeval"),
    ("random", "_os.system"),
    ("collections", "_sys.modules.get"),
    ("collections", "OrderedDict.__base__.__subclasses__"),
    ("collections", "OrderedDict.__init__.__globals__"),
    ("collections", "OrderedDict.fromkeys.__self__"),
    ("collections", "namedtuple.__globals__.get"),
    ("torch", "Size.__class__.__subclasses__"),
    ("torch", "_utils._rebuild_tensor_v2.__globals__.get"),
    ("torch.storage", "io.open"),
    ("torch.storage", "UntypedStorage.from_file"),
    ("argparse", "_os.popen"),
    ("pathlib", "os.system"),
    ("codecs", "builtins.eval"),
    ("_codecs", "encode.__self__"),
    ("builtins", "set.__class__.mro"),
    ("datetime", "sys.modules.get"),
    ("torch.optim", "sgd.torch.load"),
]
"""GHSA-5j3x-jp52-966f, CVE-2025-10157."""

# Class 7: a module is imported, and nothing is called.
IMPORTED = [
    ("antigravity", "fly"),
    ("this", "s"),
    ("modeling_evil", "Model"),
    ("my_tokenizer", "Tokenizer"),
    ("setup", "setup"),
    ("__main__", "payload"),
    ("conftest", "pytest_configure"),
    ("hubconf", "model"),
    ("sitecustomize", "x"),
    ("usercustomize", "x"),
    ("handler", "EndpointHandler"),
    ("os", "system"),
]
