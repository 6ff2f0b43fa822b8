"""Pickles that import or call something in any spelling: at least one of Python's readers executes it."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from corpora.assembler import Code, call, frame, named, proto, text, value

# Modules and names that run code, or may: Python's own, a library's, and those of a program next to the file.
NAMES = [
    ("posix", "system"),
    ("os", "system"),
    ("nt", "system"),
    ("subprocess", "call"),
    ("builtins", "eval"),
    ("__builtin__", "exec"),
    ("runpy", "run_path"),
    ("pydoc", "pipepager"),
    ("importlib", "import_module"),
    ("pkgutil", "resolve_name"),
    ("webbrowser", "open"),
    ("timeit", "timeit"),
    ("idlelib.idle", "main"),
    ("idlelib.idle", "a b"),
    ("antigravity", "geohash"),
    ("torch.hub", "load"),
    ("numpy.testing._private.utils", "runstring"),
    ("ctypes", "CDLL"),
    ("commands", "getoutput"),
    ("evil", "run"),
    ("evil-mod", "run"),
    ("evil mod", "run"),
    ("évil", "run"),
    ("package.évil-mod", "Class.method"),
    ("__main__", "Model"),
    ("x", "y"),
]
BLANKS = b" \t\x0b\x0c\r"
Quirk = Callable[[random.Random], bytes]


def _blanks(chance: random.Random) -> bytes:
    return bytes(chance.choices(BLANKS, k=chance.choice((1, 7, 255, 256, 1000, 4095, 4096, 5000, 66_000))))


def _padded(chance: random.Random) -> bytes:
    """A number after spaces; the C reader accepts none before a float."""
    return chance.choice((b"I%s1\n", b"L%s1L\n", b"F%s1.5\n")) % _blanks(chance) + b"0"


def _with_nul(chance: random.Random) -> bytes:
    """A number that only the C reader accepts."""
    digits = b"9" * chance.choice((1, 19, 40, 400))
    lines = (
        b"I\0",
        b"I\0junk",
        b"F1\0",
        b"F0\0junk",
        b"I%s\0" % digits,
        b"L%s\0junk" % digits,
        b"I1\0" + b"\xff" * 5000,
    )
    return chance.choice(lines) + b"\n0"


def _long_number(chance: random.Random) -> bytes:
    zeros = b"0" * chance.choice((300, 4096, 5000))
    return chance.choice((b"F1.%s1\n", b"I0x%s1\n", b"L0x%s1L\n")) % zeros + b"0"


def _long_value(chance: random.Random) -> bytes:
    size = chance.choice((10, 512, 4080, 4093, 5000, 70_000))
    lengths = {b"X": "<I", b"B": "<I", b"T": "<i", b"\x8d": "<Q", b"\x8e": "<Q", b"\x96": "<Q"}
    opcode = chance.choice([*lengths, b"V", b"S'"])
    if opcode in lengths:
        return opcode + struct.pack(lengths[opcode], size) + b"a" * size + b"0"
    return opcode + b"a" * size + (b"'\n0" if opcode == b"S'" else b"\n0")


def _memo(chance: random.Random) -> bytes:
    index = chance.choice((b"0", b"7", b" 7 ", b"0" * 80 + b"7", b"1_0", b"9" * 60, b"%s7" % _blanks(chance)))
    return b"Np" + index + b"\n0"


def _containers(chance: random.Random) -> bytes:
    many = chance.choice((1, 11, 12, 500))
    return chance.choice((b"}0", b"]0", b")0", b"N0", b"(1", b"K\x010", b"N20" + b"0", b"(lp0\n0", b"(dp1\n0")) * many


def _plain(_: random.Random) -> bytes:
    return value({"weight": [1.0, 2, "three"], "epoch": 7}) + b"0"


BEFORE: dict[str, Quirk] = {
    "padded": _padded,
    "nul": _with_nul,
    "long-number": _long_number,
    "long-value": _long_value,
    "memo": _memo,
    "containers": _containers,
    "plain": _plain,
}


def _spelled(chance: random.Random, word: str) -> Code:
    """A text in one of its spellings."""
    data = word.encode()
    forms = [Code(b"X" + struct.pack("<I", len(data)) + data), Code(b"\x8c" + bytes([len(data)]) + data)]
    forms.append(Code(b"V" + "".join(f"\\u{ord(c):04x}" for c in word).encode() + b"\n"))
    if word.isascii():
        forms += [Code(b"U" + bytes([len(data)]) + data), Code(b"S" + repr(word).encode() + b"\n")]
    if chance.random() < 0.3:
        index = struct.pack("<I", chance.randrange(1, 1 << 20))
        return Code(chance.choice(forms) + b"r" + index + b"0" + text("other") + b"0j" + index)
    return chance.choice(forms)


def _executed(chance: random.Random) -> tuple[str, bytes]:
    """Instructions that import or call something, and leave it on the stack."""
    module, name = chance.choice(NAMES)
    form = chance.choice(
        ("global", "stack", "inst", "obj", "newobj", "import", "import-stack", "import-inst", "no-class")
    )
    spelled = Code(_spelled(chance, module) + _spelled(chance, name) + b"\x93")
    arguments = value((chance.choice(("true", "1", "evil.py")),))
    match form:
        case "import":
            return form, named(module, name)
        case "import-stack":
            return form, spelled
        case "import-inst":
            # The Python reader imports before it looks for the missing mark.
            return form, b"i" + named(module, name)[1:]
        case "stack":
            return form, spelled + arguments + b"R"
        case "no-class":
            return form, spelled + b")\x81"
    return form, call(module, name, "true", form=form)


def _ended(chance: random.Random, body: bytes) -> tuple[str, bytes]:
    """A pickle that ends, breaks, or has data after its end."""
    end = chance.choice(("stop", "stop", "stop", "none", "junk", "underflow", "zeros", "more", "appended"))
    behind = {
        "stop": b".",
        "none": b"",
        "junk": b"\xff\xff\xffjunk\n",
        "underflow": b"000000",
        "zeros": bytes(100),
        "more": b".N.",
        "appended": b"." + chance.randbytes(200),
    }
    return f"end-{end}", body + behind[end]


def attack(chance: random.Random) -> tuple[list[str], bytes]:
    """A pickle, and the names of its quirks."""
    names = [chance.choice(sorted(BEFORE)) for _ in range(chance.choice((0, 0, 1, 1, 2, 4)))]
    before = b"".join(BEFORE[name](chance) for name in names)
    form, executed = _executed(chance)
    end, body = _ended(chance, before + executed)
    protocol = chance.choice((None, None, 0, 1, 2, 3, 4, 5))
    quirks = [*names, form, end]
    framing = chance.choice(("none", "none", "none", "true", "short", "in-line"))
    if framing == "true":
        body = frame(body)
    elif framing == "short" and len(body) > 2:
        # The frame ends between instructions, or within one.
        body = frame(body, chance.randrange(len(body)))
    elif framing == "in-line":
        # A reader of a file that cannot look ahead loses the bytes before the frame's end.
        body = frame(chance.choice((b"I*", b"F*", b"L*", b"I  "))) + b"1\n0" + body
    if framing != "none":
        quirks.append(f"frame-{framing}")
    if protocol is not None:
        body = proto(protocol) + body
    else:
        quirks.append("no-proto")
    if chance.random() < 0.1:
        quirks.append("second")
        body = chance.choice((b"N.", b"\x80\x02K\x01.", b"(dp0\n.", b"K\x01.")) * chance.choice((1, 3)) + body
    return quirks, body
