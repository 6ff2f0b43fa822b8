"""Classes 11 to 20: pickles that a scanner reads in one way and a loader in another."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from corpora.archives import DEFLATED, Member, zipped
from corpora.assembler import (
    BINPERSID,
    DUP,
    MARK,
    MEMOIZE,
    POP,
    POP_MARK,
    REDUCE,
    STACK_GLOBAL,
    STOP,
    Code,
    call,
    frame,
    get,
    line_put,
    line_text,
    named,
    payload,
    pickled,
    proto,
    put,
    reduced,
    string,
    system,
    text,
    value,
)
from corpora.formats import state_dict, storage, tensor, torch_legacy, torch_zip
from corpora.item import CAUGHT, CODE, MALICIOUS, Item, one

SYSTEM = ["posix.system"]
ARGUMENT = value(("true",)) + REDUCE


def _two_texts(put_module: str, put_name: str, get_module: str, get_name: str) -> Code:
    """A name from the memo, where other texts are at the indices that a truncating reader would use."""
    decoys = b"".join(
        text(module) + line_put(index) + POP for module, index in (("collections", 0), ("OrderedDict", 1))
    )
    both = text("collections") + b"p7\n" + POP + text("OrderedDict") + b"p8\n" + POP
    puts = text("posix") + put_module.encode() + POP + text("system") + put_name.encode() + POP
    return Code(decoys + both + puts + get_module.encode() + get_name.encode() + STACK_GLOBAL)


def memo() -> Iterator[Item]:
    """Class 11: which text the memo returns."""
    safe, evil = text("collections"), text("posix")
    name = text("system")
    cases = {
        "put-then-memoize": evil + put(0) + POP + safe + MEMOIZE + POP + get(0) + name + STACK_GLOBAL + ARGUMENT,
        "memoize-counts-entries": safe + put(5) + POP + evil + MEMOIZE + POP + get(1) + name + STACK_GLOBAL + ARGUMENT,
        "overwritten": safe + put(0) + POP + evil + put(0) + POP + get(0) + name + STACK_GLOBAL + ARGUMENT,
        "overwritten-by-line": safe
        + line_put(0)
        + POP
        + evil
        + line_put("0")
        + POP
        + b"g0\n"
        + name
        + STACK_GLOBAL
        + ARGUMENT,
        "leading-zeros": safe
        + line_put(1)
        + POP
        + evil
        + line_put("0001")
        + POP
        + b"g1\n"
        + name
        + STACK_GLOBAL
        + ARGUMENT,
        "long-binget": evil + put(100_000) + POP + get(100_000) + name + STACK_GLOBAL + ARGUMENT,
        "huge-index": evil + put(2**31 - 1) + POP + get(2**31 - 1) + name + STACK_GLOBAL + ARGUMENT,
        "in-popped-mark": MARK + evil + put(1) + name + put(2) + POP_MARK + get(1) + get(2) + STACK_GLOBAL + ARGUMENT,
        "function-in-memo": named("posix", "system") + put(3) + POP + safe + POP + get(3) + ARGUMENT,
        "name-in-tuple": value(("posix", "system"))
        + put(4)
        + POP
        + b"("
        + get(4)
        + b"1"
        + evil
        + name
        + STACK_GLOBAL
        + ARGUMENT,
        "binput-and-memoize": evil + b"q\x00" + POP + safe + MEMOIZE + POP + b"h\x00" + name + STACK_GLOBAL + ARGUMENT,
        "arguments-in-memo": value(("true",)) + put(9) + POP + named("posix", "system") + get(9) + REDUCE,
    }
    # One reader accepts any number of zeros before an index.
    zeros = "0" * 80
    for case, named_by_memo in {
        "index-after-zeros": _two_texts(f"p{zeros}7\n", f"p{zeros}8\n", "g7\n", "g8\n"),
        "index-after-zeros-got": _two_texts("p7\n", "p8\n", f"g{zeros}7\n", f"g{zeros}8\n"),
        "index-after-many-zeros": _two_texts(f"p{'0' * 4200}7\n", f"p{'0' * 4200}8\n", "g7\n", "g8\n"),
    }.items():
        yield one(
            "11-memo", f"{case}.pkl", pickled(named_by_memo, ARGUMENT, protocol=4), CAUGHT - {"broken"}, MALICIOUS
        )
    for case, code in cases.items():
        yield one("11-memo", f"{case}.pkl", pickled(code, protocol=4), CODE, MALICIOUS, SYSTEM)
        if case in ("put-then-memoize", "overwritten", "in-popped-mark"):
            data = torch_zip(pickled(code, POP, state_dict(), protocol=4))
            yield one("11-memo", f"{case}.pt", data, CODE, MALICIOUS, SYSTEM)


def operands() -> Iterator[Item]:
    """Class 12: how the text of STACK_GLOBAL gets on the stack."""
    joined = reduced(named("operator", "concat"), "po", "six")
    formatted = reduced(named("builtins", "str.format", "stack"), "{}six", "po")
    known = {
        "dup": text("posix") + DUP + POP + text("system") + STACK_GLOBAL + ARGUMENT,
        "pop-between": text("posix") + text("x") + POP + text("system") + text("y") + POP + STACK_GLOBAL + ARGUMENT,
        "escapes": line_text("posi\\u0078") + line_text("\\u0073ystem") + STACK_GLOBAL + ARGUMENT,
        "long-escapes": line_text("\\U00000070osix") + line_text("system") + STACK_GLOBAL + ARGUMENT,
        "binunicode8": b"\x8d"
        + struct.pack("<Q", 5)
        + b"posix"
        + b"X"
        + struct.pack("<I", 6)
        + b"system"
        + STACK_GLOBAL
        + ARGUMENT,
        "mark-between": b"(" + text("x") + b"1" + text("posix") + text("system") + STACK_GLOBAL + ARGUMENT,
        "string-literal": string("posix") + string("system") + STACK_GLOBAL + ARGUMENT,
        "string-escapes": b"S'\\x70osix'\nS'sys\\164em'\n" + STACK_GLOBAL + ARGUMENT,
        "binstring": b"U\x05posixT\x06\0\0\0system" + STACK_GLOBAL + ARGUMENT,
        "inst": b"(" + value("true") + b"iposix\nsystem\n",
        "obj-of-stack-global": b"(" + text("posix") + text("system") + STACK_GLOBAL + value("true") + b"o",
        "duplicated-function": named("posix", "system") + DUP + POP + ARGUMENT,
        "same-text-twice": text("posix") + DUP + STACK_GLOBAL + POP + system(),
    }
    for case, code in known.items():
        yield one("12-operands", f"{case}.pkl", pickled(code, protocol=4), CODE, MALICIOUS, SYSTEM)
    unknown = {
        "computed-by-concat": joined + text("system") + STACK_GLOBAL + ARGUMENT,
        "computed-by-format": formatted + text("system") + STACK_GLOBAL + ARGUMENT,
        "computed-by-encode": call("_codecs", "decode", b"posix", "utf-8") + text("system") + STACK_GLOBAL + ARGUMENT,
        "not-a-text": value(1) + text("system") + STACK_GLOBAL + ARGUMENT,
        "bytes": value(b"posix") + value(b"system") + STACK_GLOBAL + ARGUMENT,
        "persistent": text("posix") + BINPERSID + text("system") + STACK_GLOBAL + ARGUMENT,
    }
    for case, code in unknown.items():
        yield one("12-operands", f"{case}.pkl", pickled(code, protocol=4), CODE, MALICIOUS)


def hidden() -> Iterator[Item]:
    """Class 13: the result of the call is discarded."""
    cases = {
        "reduce-pop": system() + POP + state_dict(),
        "obj-pop": system("obj") + POP + state_dict(),
        "inst-pop": system("inst") + POP + state_dict(),
        "in-popped-mark": MARK + system() + POP_MARK + state_dict(),
        "in-popped-marks": MARK + MARK + system("obj") + POP_MARK + POP_MARK + state_dict(),
        "as-key-overwritten": value({1: system()}) + value(1) + value(2) + b"s",
        "below-the-result": system() + state_dict(),
        "after-the-result": state_dict() + system() + POP,
        "in-memo-only": system() + put(7) + POP + state_dict(),
        "as-argument": reduced(named("collections", "OrderedDict"), [[["a", system()]]]),
        "in-state": call("collections", "OrderedDict") + value({"x": system()}) + b"b",
        "in-persistent-id": value(("storage", named("torch", "FloatStorage"), "0", system(), 4)) + BINPERSID,
        "between-frames": state_dict() + system() + POP,
    }
    for case, code in cases.items():
        yield one("13-hidden", f"{case}.pkl", pickled(code, protocol=4), CODE, MALICIOUS, SYSTEM)
        yield one("13-hidden", f"{case}.pt", torch_zip(pickled(code, protocol=2)), CODE, MALICIOUS, SYSTEM)


def readers() -> Iterator[Item]:
    """Class 14: pickles that one reader accepts and another refuses."""
    bad = {
        "int-hexadecimal": b"I0x10\n",
        "int-octal": b"I0o17\n",
        "int-underscore": b"I1_000\n",
        "int-spaces": b"I 7 \n",
        "int-nul": b"I1\0\n",
        "int-leading-zeros": b"I007\n",
        "bool-of-int": b"I00\n",
        "long-hexadecimal": b"L0x10L\n",
        "long-without-l": b"L10\n",
        "float-underscore": b"F1_0.0\n",
        "float-nan": b"Fnan\n",
        "float-spaces": b"F 1.0\n",
        "string-not-ascii": b"S'\xc3\xa9'\n",
        "string-without-quotes": b"Sabc\n",
        "binstring-not-ascii": b"U\x02\xc3\xa9",
        "unicode-bad-escape": b"V\\u12\n",
        "unicode-surrogate": b"X\x03\0\0\0\xed\xa0\x80",
        "proto-6": proto(6) + b"N",
        "proto-in-the-middle": proto(3) + b"N",
        "put-big": b"N" + line_put(2**32),
        "put-negative": b"N" + line_put(-1),
        "put-spaces": b"N" + line_put(" 5 "),
        "long1-empty": b"\x8a\x00",
        "long4-negative": b"\x8b\xff\xff\xff\xff",
        "carriage-return": b"I5\r\n",
        "next-buffer": b"\x97",
        "readonly-buffer": b"N\x98",
        "bytearray8": b"\x96" + struct.pack("<Q", 3) + b"abc",
    }
    for case, instructions in bad.items():
        data = pickled(instructions + POP + system(), protocol=4)
        yield one("14-readers", f"{case}.pkl", data, CODE, MALICIOUS, SYSTEM)
    body = system() + STOP
    yield one("14-readers", "frame-too-long.pkl", proto(4) + frame(body, 1 << 20), CAUGHT, MALICIOUS, SYSTEM)
    yield one("14-readers", "frame-huge.pkl", proto(4) + frame(body, 2**63), CAUGHT, MALICIOUS, SYSTEM)
    yield one("14-readers", "frame-cut.pkl", proto(4) + frame(body, 5), CAUGHT, MALICIOUS, SYSTEM)
    yield one("14-readers", "frame-empty.pkl", proto(4) + frame(b"", 0) + frame(b"", 0) + body, CODE, MALICIOUS, SYSTEM)
    yield one("14-readers", "frame-in-frame.pkl", proto(4) + frame(frame(body)), CODE, MALICIOUS, SYSTEM)
    yield one("14-readers", "stack-left.pkl", pickled(b"NNN", system(), protocol=4), CODE, MALICIOUS, SYSTEM)
    yield one("14-readers", "mark-left.pkl", pickled(b"(((", system(), protocol=4), CODE, MALICIOUS, SYSTEM)
    yield one("14-readers", "frame-in-protocol-2.pkl", proto(2) + frame(body), CODE, MALICIOUS, SYSTEM)
    latin = pickled(b"U\x02\xc3\xa9", POP, system(), protocol=2)
    yield one("14-readers", "torch-utf8-string.pt", torch_zip(latin), CODE, MALICIOUS, SYSTEM)


def frames() -> Iterator[Item]:
    """Class 15: a long argument that crosses the end of its frame hides instructions from one of two readers."""
    sled = b"(" * 140_000
    for case, cut in (("at-the-argument", 9), ("within-the-argument", 70_000), ("before-the-payload", 140_009)):
        argument = sled + system() + STOP
        body = b"B" + struct.pack("<I", len(argument)) + argument + POP + b"N" + STOP
        yield one("15-frames", f"{case}.pkl", proto(4) + frame(body, cut), CAUGHT, MALICIOUS)
    long = b"X" + struct.pack("<I", 200_000) + b"N" * 199_000 + system() + STOP
    yield one("15-frames", "text-over-the-end.pkl", proto(4) + frame(long[:1000] + long[1000:], 900), CAUGHT, MALICIOUS)


def broken() -> Iterator[Item]:
    """Class 16: broken after the payload, or before it."""
    after = {
        "bad-opcode": b"\xff",
        "truncated": b"X\x10\0\0\0ab",
        "underflow": POP * 3,
        "no-stop": b"",
        "bad-mark": b"t",
        "nulls": bytes(8),
        "bad-long": b"\x8b\x04\0\0\0ab",
        "bad-unicode": b"X\x01\0\0\0\xff.",
        "bad-global": b"c\xff\xff\nx\n.",
        "cut-in-line": b"cos",
    }
    for case, tail in after.items():
        yield one("16-broken", f"{case}.pkl", proto(2) + system() + tail, CAUGHT, MALICIOUS, SYSTEM)
        data = torch_zip(proto(2) + system() + tail)
        yield one("16-broken", f"{case}.pt", data, CAUGHT, MALICIOUS, SYSTEM)
    before = {
        "bad-opcode-first": b"\xff\xfe",
        "underflow-first": b"00",
        "bad-int-first": b"Ixyz\n",
        "bad-memo-first": b"h\x63",
        "bad-float-first": b"Fxyz\n",
        "nul-int-first": b"I\x00\n",
    }
    for case, head in before.items():
        yield one("16-broken", f"{case}.pkl", pickled(head, system()), CAUGHT, MALICIOUS)
    yield one("16-broken", "7z-magic-and-pickle.pt", b"7z\xbc\xaf\x27\x1c" + payload(), CAUGHT)


def several() -> Iterator[Item]:
    """Class 17: more than one pickle."""
    good, evil = pickled(value({"a": 1})), payload()
    cases = {
        "after-stop": good + evil,
        "after-four-nulls": good + bytes(4) + evil,
        "after-junk": good + b"junk junk\n" + evil,
        "sixth": good * 5 + evil,
        "hundredth": good * 99 + evil,
        "after-64-kib": good + bytes(65536) + evil,
        "without-protocol": good + pickled(system(), protocol=None),
        "first-of-two": evil + good,
        "between": good + evil + good,
    }
    for case, data in cases.items():
        yield one(
            "17-several",
            f"{case}.pkl",
            data,
            CODE if "junk" not in case and "null" not in case and "kib" not in case else CAUGHT,
            MALICIOUS,
        )
    for case in ("after-stop", "after-four-nulls", "sixth"):
        head = pickled(state_dict())
        data = cases[case].replace(good, head)
        yield one("17-several", f"{case}.pt", torch_zip(data), CAUGHT, MALICIOUS)


def codes_and_ids() -> Iterator[Item]:
    """Class 18: extension codes and persistent ids."""
    for name, code in (("ext1", b"\x82\x01"), ("ext2", b"\x83\x01\x02"), ("ext4", b"\x84\x01\x02\x03\x04")):
        yield one("18-codes", f"{name}.pkl", pickled(code, value(("true",)), REDUCE), CAUGHT, MALICIOUS)
        yield one("18-codes", f"{name}.pt", torch_zip(pickled(code, POP, state_dict())), CAUGHT, MALICIOUS)
        added = call("copyreg", "add_extension", "posix", "system", 1)
        data = pickled(added, POP, code, value(("true",)), REDUCE)
        yield one("18-codes", f"{name}-added.pkl", data, CODE, MALICIOUS, ["copyreg.add_extension"])
    ids = {
        "text": value("evil"),
        "line": Code(b"Pposix system\n"),
        "other-word": value(("module", named("torch", "FloatStorage"), "0", "cpu", 4)),
        "other-class": value(("storage", named("posix", "system"), "0", "cpu", 4)),
        "nested": value(("storage", named("torch", "FloatStorage"), ("0", "1"), "cpu", 4)),
        "path-key": value(("storage", named("torch", "FloatStorage"), "../../etc/passwd", "cpu", 4)),
        "number": value(7),
    }
    for case, code in ids.items():
        body = code if code.startswith(b"P") else Code(code + BINPERSID)
        yield one("18-codes", f"persistent-{case}.pt", torch_zip(pickled(value({"weight": body}))), CAUGHT, MALICIOUS)


def exhaustion() -> Iterator[Item]:
    """Class 19: small files that need much time or memory."""
    doubled = b"(" + b"N" + MEMOIZE + b"".join(b"\x86" + MEMOIZE + DUP for _ in range(60))
    lists = b"]" + put(0) + b"".join(b"](" + get(n) + get(n) + b"e" + put(n + 1) for n in range(40))
    zeros = bytes(1 << 20)
    cases = {
        "memo-bomb.pkl": (pickled(lists), CAUGHT),
        "dup-bomb.pkl": (pickled(b"N" + DUP * 200_000 + b"t"), CAUGHT),
        "tuple-doubling.pkl": (pickled(doubled, protocol=4), CAUGHT),
        "long-of-8-mb-cut.pkl": (pickled(b"\x8b" + struct.pack("<i", 8 << 20) + b"\x01" * 64), CAUGHT),
        "marks.pkl": (pickled(MARK * 100_000 + system()), CODE),
        "length-2-63.pkl": (pickled(b"\x8e" + struct.pack("<Q", 1 << 63)), CAUGHT),
        "text-length-2-63.pkl": (pickled(b"\x8d" + struct.pack("<Q", (1 << 63) - 1) + system()), CAUGHT),
        "memo-index.pkl": (pickled(b"N" + put(0xFFFFFFFF) + POP + system()), CODE),
        "nested-tuples.pkl": (pickled(b"(" * 50_000 + b"N" + b"t" * 50_000 + POP + system()), CODE),
        "many-calls.pkl": (pickled(b"".join(system() + POP for _ in range(20_000)) + b"N"), CODE),
        "zip-bomb.pt": (zipped([Member("archive/data.pkl", zeros * 64, DEFLATED)]), CAUGHT),
        "instructions-then-payload.pkl": (pickled(b"N0" * 500_000 + system()), CODE),
    }
    for name, (data, answers) in cases.items():
        yield one("19-exhaustion", name, data, answers, "", SYSTEM if answers is CODE else ())
    bomb = zipped([Member("archive/data.pkl", zeros * 8, DEFLATED)])
    for _ in range(3):
        bomb = zipped([Member(f"{number}.zip", bomb, DEFLATED) for number in range(8)])
    yield one("19-exhaustion", "nested-zip-bomb.zip", bomb, CAUGHT)


def weights_only() -> Iterator[Item]:
    """Class 20: pickles that torch.load(weights_only=True) of older versions accepts, or falls back from."""
    elements = tensor(count=1 << 40)
    outside = tensor(shape=(1000,), strides=(1,))
    cases = {
        "setitem-on-tensor": Code(tensor() + value("x") + value(1) + b"s"),
        "setitem-on-storage": Code(storage() + value(0) + value(1) + b"s"),
        "setitems-on-tensor": Code(tensor() + b"(" + value(0) + value(1) + b"u"),
        "append-on-tensor": Code(tensor() + value(1) + b"a"),
        "appends-on-dict": Code(b"}(" + value(1) + b"e"),
        "build-on-tensor": Code(tensor() + value((named("posix", "system"),)) + b"b"),
        "storage-larger-than-member": value({"weight": elements}),
        "shape-larger-than-storage": value({"weight": outside}),
        "negative-offset": value({"weight": tensor(offset=-4)}),
        "negative-strides": value({"weight": tensor(shape=(2, 2), strides=(-1, 1))}),
        "two-sizes-of-one-storage": value({"a": tensor(), "b": tensor(count=400, shape=(400,))}),
        "missing-storage": value({"weight": tensor(key="7")}),
        "call-of-tensor": Code(tensor() + value(("true",)) + REDUCE),
        "rebuild-with-too-many": reduced(named("torch._utils", "_rebuild_tensor_v2"), *range(30)),
        "rebuild-with-too-few": reduced(named("torch._utils", "_rebuild_tensor_v2"), storage()),
        "getattr-of-tensor": reduced(named("builtins", "getattr"), tensor(), "__class__"),
        "set-type": reduced(
            named("torch._tensor", "_rebuild_from_type_v2"),
            named("posix", "system"),
            named("torch", "Tensor"),
            ("true",),
            {},
        ),
        "wrapper-subclass": reduced(
            named("torch._utils", "_rebuild_wrapper_subclass"), named("evil", "Tensor"), value(1)
        ),
        "parameter-with-state": reduced(
            named("torch._utils", "_rebuild_parameter_with_state"),
            tensor(),
            True,
            call("collections", "OrderedDict"),
            {"__class__": named("os", "system")},
        ),
    }
    for case, code in cases.items():
        yield one("20-weights-only", f"{case}.pt", torch_zip(pickled(code)), CAUGHT)
    huge = torch_legacy(tail=struct.pack("<q", 1 << 60) + bytes(16))
    yield one("20-weights-only", "legacy-storage-count.pth", huge, CAUGHT)


def items() -> Iterator[Item]:
    """All of them."""
    for group in (memo, operands, hidden, readers, frames, broken, several, codes_and_ids, exhaustion, weights_only):
        yield from group()
