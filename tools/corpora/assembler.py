"""Pickles assembled from instructions: an expression leaves one value on the stack."""

from __future__ import annotations

import struct
from typing import Any

STOP, REDUCE, BUILD, POP, MARK, DUP, TUPLE, MEMOIZE = b".", b"R", b"b", b"0", b"(", b"2", b"t", b"\x94"
NONE, EMPTY_DICT, EMPTY_LIST, EMPTY_TUPLE, STACK_GLOBAL, NEWOBJ = b"N", b"}", b"]", b")", b"\x93", b"\x81"
SETITEM, APPEND, POP_MARK, BINPERSID, NEWOBJ_EX = b"s", b"a", b"1", b"Q", b"\x92"


class Code(bytes):
    """Instructions in place of a value."""


def proto(number: int) -> bytes:
    """PROTO."""
    return bytes([0x80, number])


def text(value: str) -> Code:
    """BINUNICODE, which torch.load(weights_only=True) knows, too."""
    data = value.encode("utf-8", "surrogatepass")
    return Code(b"X" + struct.pack("<I", len(data)) + data)


def line_text(value: str) -> Code:
    """UNICODE: a line of text that is already escaped."""
    return Code(b"V" + value.encode("latin-1") + b"\n")


def string(value: str) -> Code:
    """STRING: a line of a literal."""
    return Code(b"S" + repr(value).encode() + b"\n")


def value(thing: Any) -> Code:
    """Instructions for a plain value, or the given ones."""
    match thing:
        case Code():
            return thing
        case None:
            return Code(NONE)
        case bool():
            return Code(b"\x88" if thing else b"\x89")
        case int() if 0 <= thing < 256:
            return Code(b"K" + bytes([thing]))
        case int() if -(1 << 31) <= thing < 1 << 31:
            return Code(b"J" + struct.pack("<i", thing))
        case int():
            data = thing.to_bytes(thing.bit_length() // 8 + 1, "little", signed=True)
            return Code(b"\x8a" + bytes([len(data)]) + data)
        case float():
            return Code(b"G" + struct.pack(">d", thing))
        case str():
            return text(thing)
        case bytes():
            return Code(b"B" + struct.pack("<I", len(thing)) + thing)
        case tuple():
            return Code(MARK + b"".join(map(value, thing)) + TUPLE)
        case list():
            return Code(EMPTY_LIST + MARK + b"".join(map(value, thing)) + b"e")
        case dict():
            pairs = b"".join(value(key) + value(element) for key, element in thing.items())
            return Code(EMPTY_DICT + MARK + pairs + b"u")
    raise TypeError(type(thing))


def named(module: str, name: str, form: str = "global") -> Code:
    """A global, by GLOBAL or by STACK_GLOBAL."""
    if form == "stack":
        return Code(text(module) + text(name) + STACK_GLOBAL)
    return Code(b"c" + module.encode() + b"\n" + name.encode() + b"\n")


def reduced(function: Code, *arguments: Any) -> Code:
    """The result of a function for these arguments."""
    return Code(function + value(tuple(arguments)) + REDUCE)


def call(module: str, name: str, *arguments: Any, form: str = "global") -> Code:
    """The result of a global for these arguments, in one of the forms of a call in pickles."""
    values = b"".join(map(value, arguments))
    match form:
        case "inst":
            return Code(MARK + values + b"i" + module.encode() + b"\n" + name.encode() + b"\n")
        case "obj":
            return Code(MARK + named(module, name) + values + b"o")
        case "newobj":
            return Code(named(module, name) + value(tuple(arguments)) + NEWOBJ)
    return reduced(named(module, name, form), *arguments)


def put(number: int) -> bytes:
    """LONG_BINPUT."""
    return b"r" + struct.pack("<I", number)


def get(number: int) -> Code:
    """LONG_BINGET."""
    return Code(b"j" + struct.pack("<I", number))


def line_put(number: int | str) -> bytes:
    """PUT."""
    return b"p" + str(number).encode() + b"\n"


def frame(body: bytes, length: int | None = None) -> bytes:
    """FRAME, and what is in it; the length is true unless it is given."""
    return b"\x95" + struct.pack("<Q", len(body) if length is None else length) + body


def pickled(*code: bytes, protocol: int | None = 2, framed: bool = False) -> bytes:
    """A whole pickle; without a protocol it begins with its first instruction."""
    body = b"".join(code) + STOP
    if framed:
        body = frame(body)
    return body if protocol is None else proto(protocol) + body


# The functions that the attacks call, with the name that has to be found.
SYSTEM = "posix.system"


def system(form: str = "global", command: str = "true") -> Code:
    """`posix.system("true")`."""
    return call("posix", "system", command, form=form)


def payload(form: str = "global", protocol: int | None = 2) -> bytes:
    """A pickle that calls it."""
    return pickled(system(form), protocol=protocol)
