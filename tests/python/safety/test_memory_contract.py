"""The memory bound for hostile files: 16 times the file's length, 64 MB and the returned tensors; never a crash.

Each action runs in a separate process, which reports the growth of its peak memory. With a limit on the address space,
it may end in a MemoryError, and in nothing worse.
"""

import json
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from refusals import refuses

BYTES_PER_FILE_BYTE = 16
SCRATCH_BYTES = 64 << 20

CHILD = """
import json, resource, sys
action, path, room = sys.argv[1], sys.argv[2], int(sys.argv[3])
import max_weights, max_weights.numpy
if action == "load":
    import torch, max_weights.torch

def status(field):
    return 1024 * next(int(row.split()[1]) for row in open("/proc/self/status") if row.startswith(field))

def act():
    if action == "open":
        return len(max_weights.load_weights(path))
    if action == "objects":
        return len(max_weights.infos(max_weights.load_weights(path)).objects.values())
    if action == "one by one":
        found = max_weights.infos(max_weights.load_weights(path)).objects
        return len([found[name] for name in found])
    if action == "arguments":
        found = max_weights.infos(max_weights.load_weights(path)).objects
        return len(next(iter(found.values())).states)
    if action == "load":
        return type(max_weights.torch.load(path)).__name__
    if action == "arrays":
        return len(max_weights.numpy.load_file(path))
    if action == "metadata":
        return len(max_weights.load_weights(path).metadata.items())

open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
before = status("VmRSS")
if room:
    resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + room, resource.RLIM_INFINITY))
try:
    outcome = ["done", str(act())]
except Exception as error:
    outcome = [type(error).__name__, str(error)]
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps([status("VmHWM") - before, *outcome]))
"""


def run(action: str, path: Path, buffer: int = 0) -> tuple[int, str, str]:
    """Return (peak in bytes, outcome, message) of a process that may use `buffer` additional bytes."""
    command = [sys.executable, "-c", CHILD, action, str(path), str(buffer)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert child.returncode == 0, f"{child.returncode}: {child.stderr}"
    peak, outcome, message = json.loads(child.stdout)
    return peak, outcome, message


def within(action: str, path: Path) -> tuple[str, str]:
    peak, outcome, message = run(action, path)
    limit = BYTES_PER_FILE_BYTE * path.stat().st_size + SCRATCH_BYTES
    assert peak <= limit, f"{peak:,} bytes for a file of {path.stat().st_size:,}: {outcome} {message}"
    return outcome, message


def archive(path: Path, pickled: bytes, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as made:
        made.writestr("a/data.pkl", b"\x80\x02" + pickled + b".")
    return path


def text(value: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value


def nested(levels: int) -> bytes:
    """A list of two references to one list of two references, and so on."""
    body = b"]q\x000"
    for level in range(levels):
        body += b"](h" + bytes([level, 0x68, level]) + b"eq" + bytes([level + 1]) + b"0"
    return body + b"}" + text(b"k") + b"h" + bytes([levels]) + b"s"


def numbers(count: int) -> list[bytes]:
    """Distinct integers of 32 bits."""
    return [b"J" + struct.pack("<I", number) for number in range(count)]


def again(value: bytes, times: int) -> bytes:
    """A list that has one value many times."""
    return b"](" + value + b"q\x01" + b"h\x01" * times + b"e"


PICKLES: dict[str, Callable[[], bytes]] = {
    "lists": lambda: b"]0" * 2_000_000 + b"N",
    "lists in a list": lambda: b"](" + b"]" * 2_000_000 + b"e",
    "placeholders": lambda: b"c__main__\nA\nq\x000](" + b"h\x00)\x81" * 400_000 + b"e",
    "dicts in a list": lambda: b"](" + b"}" * 1_000_000 + b"e",
    "sets in a list": lambda: b"](" + b"\x8f" * 1_000_000 + b"e",
    "tuples": lambda: b")" + b"\x85" * 1_500_000,
    "small integers": lambda: b"](" + b"M\xff\xff" * 2_000_000 + b"e",
    "a memo of high numbers": lambda: b"N" + b"".join(b"r" + struct.pack("<I", 2 * i + 9) for i in range(800_000)),
    "a dict of integers": lambda: b"}(" + b"N".join(numbers(800_000)) + b"Nu",
    "shapes": lambda: (
        b"ctorch\nSize\nq\x000](" + b"".join(b"h\x00" + n + b"\x85\x85R" for n in numbers(400_000)) + b"e"
    ),
    "a text at each reference": lambda: again(text(b"x" * 1_000_000), 2000),
    "bytes at each reference": lambda: again(b"B" + struct.pack("<I", 1_000_000) + bytes(1_000_000), 2000),
    "a long integer at each reference": lambda: again(b"\x8b" + struct.pack("<I", 1000) + b"\x01" * 1000, 500_000),
    "a list under many names": lambda: (
        b"}("
        + text(b"z")
        + b"]("
        + b"K\x01" * 20_000
        + b"eq\x01"
        + b"".join(text(b"k%05d" % number) + b"](h\x01e" for number in range(10_000))
        + b"u"
    ),
    "lists of lists of one": lambda: nested(100),
}
REFUSED = ("[pickle.memory]", "[pickle.leaves]", "[torch.memory]", "[torch.depth]")


@pytest.mark.parametrize(
    ("kind", "action"),
    [
        *((kind, "one by one") for kind in PICKLES),
        ("a list under many names", "objects"),
        *((kind, "load") for kind in ("dicts in a list", "small integers", "shapes", "a text at each reference")),
    ],
)
def test_a_pickle_takes_no_more_than_its_file_allows(tmp_path: Path, kind: str, action: str) -> None:
    outcome, message = within(action, archive(tmp_path / "a.pt", PICKLES[kind]()))
    # A loader does not build unknown objects.
    assert outcome in ("done", "UnsupportedError") or any(rule in message for rule in REFUSED), message


@pytest.mark.parametrize("kind", PICKLES)
def test_a_compressed_pickle_counts_by_its_compressed_bytes(tmp_path: Path, kind: str) -> None:
    path = archive(tmp_path / "a.pt", PICKLES[kind](), zipfile.ZIP_DEFLATED)
    outcome, message = within("one by one", path)
    assert outcome == "done" or any(rule in message for rule in REFUSED), message


@pytest.mark.parametrize("buffer", [40 << 20, 130 << 20])
@pytest.mark.parametrize("kind", PICKLES)
def test_without_memory_a_pickle_ends_in_an_error_and_not_the_process(tmp_path: Path, kind: str, buffer: int) -> None:
    path = archive(tmp_path / "a.pt", PICKLES[kind]())
    _, outcome, message = run("one by one", path, buffer)
    assert outcome in ("done", "FormatError", "MemoryError"), message


def test_lists_of_a_deflated_pickle_are_refused_with_a_sentence(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt", b"]0" * 20_000_000 + b"N", zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 50_000
    outcome, message = within("open", path)
    assert outcome == "FormatError"
    assert "[pickle.memory]" in message
    assert "16 times" in message
    assert run("open", path, 1 << 30)[1] == "FormatError"


def test_states_of_a_placeholder_that_are_one_list_are_one_list(tmp_path: Path) -> None:
    pickled = b"](" + b"K\x01" * 200_000 + b"eq\x000c__main__\nA\n)\x81" + b"h\x00b" * 5000
    assert within("arguments", archive(tmp_path / "a.pt", pickled)) == ("done", "5000")


def test_all_storages_together_have_a_bound(tmp_path: Path) -> None:
    """Twelve entries, each of which would be inflated separately."""
    count, size = 12, 240_000_000

    def tensor(number: int) -> bytes:
        elements = b"J" + struct.pack("<i", size // 4)
        storage = b"(" + text(b"storage") + b"ctorch\nFloatStorage\n" + text(b"%d" % number) + text(b"cpu") + elements
        return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"tQK\x00" + elements + b"\x85K\x01\x85\x89}tR"

    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
        names = b"".join(text(b"w%d" % number) + tensor(number) for number in range(count))
        made.writestr("a/data.pkl", b"\x80\x02}(" + names + b"u.")
        for number in range(count):
            with made.open(f"a/data/{number}", "w") as entry:
                for _ in range(size // 8_000_000):
                    entry.write(bytes(8_000_000))
    assert path.stat().st_size < 3_000_000
    outcome, message = within("arrays", path)
    assert outcome == "FormatError"
    assert "[torch-zip.bomb]" in message
    assert "together" in message
    # An entry with the compression ratio of trained weights is read.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(
            "a/data.pkl",
            b"\x80\x02}(" + text(b"w") + tensor(0).replace(b"J" + struct.pack("<i", size // 4), b"M\x00\x10") + b"u.",
        )
        made.writestr("a/data/0", os.urandom(8192) + bytes(8192))
    assert run("arrays", path)[1:] == ("done", "1")


def gguf(value: bytes, keys: int = 1) -> bytes:
    pairs = b"".join(struct.pack("<Q", 4) + b"k%03d" % key + struct.pack("<I", 9) + value for key in range(keys))
    start = b"GGUF" + struct.pack("<IQQ", 3, 0, keys) + pairs
    return start + bytes(-len(start) % 32)


@pytest.mark.parametrize(
    ("element", "one", "count"),
    [
        (9, struct.pack("<IQ", 8, 0), 1_000_000),
        (9, struct.pack("<IQB", 0, 1, 7), 800_000),
        (8, struct.pack("<Q", 2) + b"ab", 1_000_000),
        (8, struct.pack("<Q", 5) + "a€".encode() + b"b", 800_000),
    ],
    ids=["arrays of nothing", "arrays of one number", "short texts", "texts of wide characters"],
)
def test_metadata_of_a_gguf_takes_no_more_than_its_file_allows(
    tmp_path: Path, element: int, one: bytes, count: int
) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf(struct.pack("<IQ", element, count) + one * count))
    outcome, message = within("metadata", path)
    assert outcome == "done" or (outcome == "FormatError" and "[gguf.memory]" in message), message
    for buffer in (40 << 20, 100 << 20):
        assert run("metadata", path, buffer)[1] in ("done", "FormatError", "MemoryError")


def safetensors(header: bytes, data: int = 0) -> bytes:
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + bytes(data)


def entry(name: bytes, shape: bytes = b"0") -> bytes:
    return b'"' + name + b'":{"dtype":"U8","shape":[' + shape + b'],"data_offsets":[0,0]}'


HEADERS: dict[str, Callable[[], bytes]] = {
    "many tensors": lambda: b",".join(entry(b"%d" % number) for number in range(150_000)),
    "many dimensions": lambda: b",".join(entry(b"%d" % number, b"0" + b",1" * 63) for number in range(40_000)),
    "a long name": lambda: entry(b"n" * 20_000_000),
    "a long name with an escape": lambda: entry(b"\\n" + b"n" * 20_000_000),
    "metadata": lambda: b'"__metadata__":{' + b",".join(b'"%d":""' % number for number in range(900_000)) + b"}",
    "a text where a number should be": lambda: entry(b"a", b'"' + "\u200b".encode() * 5_000_000 + b'"'),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_a_header_of_safetensors_takes_no_more_than_its_file_allows(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors(b"{" + HEADERS[kind]() + b"}"))
    within("open", path)
    for buffer in (30 << 20, 90 << 20):
        assert run("open", path, buffer)[1] in ("done", "FormatError", "MemoryError")


def test_an_index_takes_no_more_than_its_file_allows(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(safetensors(b"{}"))
    path = tmp_path / "model.safetensors.index.json"
    names = ",".join(f'"{number}":"a.safetensors"' for number in range(400_000))
    path.write_text('{"weight_map":{' + names + "}}")
    within("open", path)
    for buffer in (30 << 20, 90 << 20):
        assert run("open", path, buffer)[1] in ("FormatError", "MemoryError")


def test_a_directory_of_a_zip_takes_no_more_than_its_file_allows(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("a/data.pkl", b"\x80\x02}.")
        for number in range(60_000):
            made.writestr(f"a/{number}", b"")
    assert within("open", path)[0] == "done"
    for buffer in (10 << 20, 30 << 20):
        assert run("open", path, buffer)[1] in ("done", "MemoryError")


def test_keys_of_one_hash_do_not_keep_the_reader_busy(tmp_path: Path) -> None:
    """Comparing 30,000 integers with each other took Python seven seconds."""
    from max_weights.errors import FormatError
    from max_weights.torch import load

    modulus = 2**61 - 1  # that of the hashes of numbers
    keys = [b"\x8a\x0c" + ((number + 1) * modulus).to_bytes(12, "little") for number in range(5000)]
    tuples = [key + b"\x85" for key in keys]
    for content in (
        b"}(" + b"N".join(keys) + b"Nu",
        b"}(" + b"N".join(tuples) + b"Nu",
        b"\x8f(" + b"".join(keys) + b"\x90",
        b"(" + b"".join(keys) + b"\x91",
    ):
        with refuses(FormatError, "torch.key") as caught:
            load(archive(tmp_path / "a.pt", content))
        assert caught.value.rule == "torch.key"
    # Python computes the hash of nested references to one tuple again each time.
    shared = b")" + b"".join(b"q" + bytes([level]) + b"h" + bytes([level]) + b"\x86" for level in range(30))
    with refuses(FormatError, "torch.key"):
        load(archive(tmp_path / "a.pt", b"}" + shared + b"Ns"))
    assert (
        len(
            load(
                archive(tmp_path / "a.pt", b"}(" + b"N".join(b"M" + struct.pack("<H", i) for i in range(5000)) + b"Nu")
            )
        )
        == 5000
    )
