"""Everything that a loader unpacks or renders is scanned: files of other programs, and how those process them."""

import bz2
import gzip
import lzma
import pickle
import random
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pytest

import max_weights


class Evil:
    """Calls a function when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("1 + 1",)


EVIL = pickle.dumps(Evil(), 4)


def answer(path: Path) -> str:
    """The worst answer about a file."""
    return max_weights.validate(path).answer


def alone(data: bytes) -> bytes:
    return lzma.compress(data, format=lzma.FORMAT_ALONE)


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "lzma": alone,
}
OPENERS: dict[str, Callable[..., Any]] = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open, "lzma": lzma.open}


@pytest.mark.parametrize("kind", PACKERS)
def test_whatever_python_unpacks_from_streams_one_behind_the_other_is_found(kind: str, tmp_path: Path) -> None:
    path, random_number, pack = tmp_path / "model.pkl", random.Random(37), PACKERS[kind]
    read = 0
    for number in range(25):
        cuts = sorted(random_number.randrange(len(EVIL) + 1) for _ in range(number % 4))
        parts = [EVIL[start:end] for start, end in zip([0, *cuts], [*cuts, len(EVIL)], strict=True)]
        gap = b"\0" * random_number.choice([0, 0, 1, 4, 700])
        path.write_bytes(gap.join([pack(b"") for _ in range(number % 3)] + [pack(part) for part in parts]))
        try:
            with OPENERS[kind](path, "rb") as file:
                unpacked = file.read()
        except (OSError, EOFError, lzma.LZMAError):
            continue
        if unpacked == EVIL:
            read += 1
            assert answer(path) == "malicious", (number, cuts, len(gap))
    assert read >= 8


def test_whatever_liblzma_recognises_is_found(tmp_path: Path) -> None:
    path, taken = tmp_path / "model.joblib", 0
    windows = [1 << n for n in range(27)] + [3 << n for n in range(25)] + [0, 5, 12_345, (1 << 20) + 1]
    for properties in ({}, {"lc": 0, "lp": 2, "pb": 0}, {"lc": 4, "lp": 0, "pb": 4}):
        filters = [{"id": lzma.FILTER_LZMA1, **properties}]
        stream = lzma.compress(EVIL, format=lzma.FORMAT_ALONE, filters=filters)
        for window in windows:
            changed = stream[:1] + struct.pack("<I", window) + stream[5:]
            try:
                # Within the memory of a model.
                lzma.LZMADecompressor(memlimit=1 << 28).decompress(changed)
            except lzma.LZMAError:
                continue
            taken += 1
            path.write_bytes(changed)
            assert answer(path) == "malicious", (properties, window)
    assert taken > 100


def test_lzip_which_liblzma_reads_is_not_clean(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA1, "lc": 3, "lp": 0, "pb": 2, "dict_size": 4096}]
    raw = lzma.compress(EVIL, format=lzma.FORMAT_RAW, filters=filters)
    end = struct.pack("<IQQ", zlib.crc32(EVIL), len(EVIL), 6 + len(raw) + 20)
    (tmp_path / "model.pkl.xz").write_bytes(b"LZIP\x01\x0c" + raw + end)
    assert answer(tmp_path / "model.pkl.xz") == "broken"


@pytest.mark.parametrize(("program", "options"), [("zstd", []), ("lz4", []), ("lz4", ["-l"])])
def test_whatever_zstd_and_lz4_unpack_is_found(program: str, options: list[str], tmp_path: Path) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"the program {program} is not installed; the same streams are constants in the tests in Rust")

    def packed(data: bytes) -> bytes:
        return subprocess.run([program, "-c", "-q", *options], input=data, capture_output=True, check=True).stdout

    excluded = struct.pack("<II", 0x184D2A57, 600) + b"q" * 600
    path = tmp_path / "model.pkl"
    for data in (packed(EVIL), excluded + packed(EVIL), excluded * 2 + packed(b"")[:0] + packed(EVIL)):
        done = subprocess.run([program, "-d", "-c", "-q"], input=data, capture_output=True, check=False)
        assert done.stdout == EVIL
        path.write_bytes(data)
        assert answer(path) == "malicious"


# Names of an attribute, put together in as many ways as templates have.
NAMES = [
    "'__class__'",
    "'_' * 2 ~ 'class' ~ '_' * 2",
    "'x__class__x'[1:-1]",
    "'__ssalc__'[::-1]",
    "'__cla-ss__'.split('-') | join",
    "'a,__class__'.split(',')[1]",
    "'a __class__'.split() | last",
    "'b__class__'.removeprefix('b')",
    "'__CLASS__' | lower",
    "'__clxss__' | replace('x', 'a')",
    "['__class', '__'] | join",
    "'%s%s' % ('__cla', 'ss__')",
    "'{}{}'.format('__cla', 'ss__')",
    "'__clXss__'.translate({88: 97})",
    "'__cla' ~ undefined_name ~ 'ss__'",
    "'__claſs__'.upper().lower()",
    "'__class__ '.partition(' ') | first",
    "'__class__'.ljust(9)",
    "'_ class _'.replace(' ', '_')",
    "'--class--'.replace('-', '_')",
    "('__cla', 'ss__') | join",
    "['__class__'] | first",
    "'__class__' | list | join",
    "{'a': '__class__'}.a",
    "dict(a='__class__').values() | first",
    "'__class__' | string | trim",
    "'__cla\\x73s__'",
    "'__cla' 'ss__'",
    "('no' if undefined_name else '__cla' ~ 'ss__')",
    "undefined_name or '__cla' + 'ss__'",
]


@pytest.mark.parametrize("suffix", ["jinja", "template", "yaml"])
def test_a_template_that_jinja_leads_into_python_is_never_clean(suffix: str, tmp_path: Path) -> None:
    reached = 0
    for number, name in enumerate(NAMES):
        for text in (f"{{{{ x[{name}] }}}}", f"{{% set n = {name} %}}{{{{ x[n] }}}}", f"{{{{ x | attr({name}) }}}}"):
            if "class 'int'" not in jinja2.Environment().from_string(text).render(x=1):
                continue
            reached += 1
            path = tmp_path / f"{number}.{suffix}"
            path.write_text(f"chat_template: |-\n  {text}\n" if suffix == "yaml" else text, encoding="utf-8")
            report = max_weights.validate(path)
            assert report.answer in ("malicious", "needs-trust"), (text, report.answer)
    assert reached > 60
