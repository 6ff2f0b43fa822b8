"""Archives that a scanner and a loader read differently, end to end.

They are refused, or read with all their globals listed. The tricks are those of CVE-2025-1889 and CVE-2025-10155
(another file name), CVE-2025-1944 (another name in the local header), CVE-2025-1945 (flag bits), CVE-2025-10156 (wrong
checksums), CVE-2025-10157 (submodules), and of overlapping, doubled and hidden entries.
"""

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import max_weights
from max_weights._core import torch_globals
from max_weights.errors import FormatError, UnsupportedError, WeightsError
from max_weights.torch import load
from refusals import refuses
from test_pytorch_hostile import ATTACKS, COMMAND, MARKER, archive, attack, stacked_call

CENTRAL, LOCAL = b"PK\x01\x02", b"PK\x03\x04"


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    return archive(tmp_path / "a.pt", attack(ATTACKS["os.system"]))


def patched(path: Path, signature: bytes, field: int, value: bytes, entry: int = 0) -> None:
    """Overwrites a field of the header of an entry."""
    data = bytearray(path.read_bytes())
    at = -1
    for _ in range(entry + 1):
        at = data.index(signature, at + 1)
    data[at + field : at + field + len(value)] = value
    path.write_bytes(data)


def refused(path: Path, rule: str) -> None:
    for opened in (max_weights.load_weights, load):
        with pytest.raises((FormatError, UnsupportedError)) as caught:
            opened(path)
        assert caught.value.rule == rule, caught.value
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("bit", [0x0001, 0x0020, 0x0040, 0x2000])
@pytest.mark.parametrize(("signature", "field"), [(LOCAL, 6), (CENTRAL, 8)], ids=["local", "central"])
def test_flag_bits_of_one_header_cve_2025_1945(evil: Path, bit: int, signature: bytes, field: int) -> None:
    patched(evil, signature, field, struct.pack("<H", bit))
    with pytest.raises((FormatError, UnsupportedError)) as caught:
        max_weights.load_weights(evil)
    assert caught.value.rule in ("torch-zip.local-flags", "torch-zip.encrypted", "torch-zip.flags")


@pytest.mark.parametrize("name", [b"a/dat4.pkl", b"b/data.pkl"])
def test_another_name_in_the_entrys_own_header_cve_2025_1944(evil: Path, name: bytes) -> None:
    patched(evil, LOCAL, 30, name)
    refused(evil, "torch-zip.local-name")


def test_a_wrong_checksum_hides_nothing_cve_2025_10156(evil: Path) -> None:
    with zipfile.ZipFile(evil) as read:
        assert read.namelist()[0] == "a/data.pkl"
    for signature, field in ((LOCAL, 14), (CENTRAL, 16)):
        patched(evil, signature, field, b"\x01\x02\x03\x04")
    with zipfile.ZipFile(evil) as read, pytest.raises(zipfile.BadZipFile, match="CRC"):
        read.read("a/data.pkl")
    refused(evil, "torch-zip.crc")
    weights = max_weights.load_weights(evil, strict=False)
    assert [name for _, name, _, verdict in torch_globals(weights) if verdict == "runs-code"] == ["os.system"]
    assert any("checksum" in warning for warning in max_weights.infos(weights).warnings)


@pytest.mark.parametrize("name", ["a.bin", "config.p", "weights", "picture.png", "data.zip", "a.ckpt", "a.7z"])
def test_another_file_name_cve_2025_1889_and_10155(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / name, attack(ATTACKS["os.system"]))
    weights = max_weights.load_weights(path)
    assert {verdict for *_, verdict in torch_globals(weights)} >= {"runs-code"}
    with refuses(UnsupportedError, "torch.global"):
        load(path)


def test_submodule_names_cve_2025_10157(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for module, name in [
        ("asyncio.unix_events", "_UnixSubprocessTransport._start"),
        ("os.path", "os.system"),
        ("subprocess", "os.system"),
        ("torch", "os.system"),
        ("collections", "_sys.modules"),
        ("torch._utils", "_rebuild_tensor_v2.__globals__"),
    ]:
        path = archive(tmp_path / "a.pt", attack(stacked_call(module, name, COMMAND)))
        weights = max_weights.load_weights(path)
        verdicts = {found: verdict for _, found, _, verdict in torch_globals(weights)}
        assert verdicts[f"{module}.{name}"] == "runs-code"
        with pytest.raises(UnsupportedError):
            load(path)
        assert not (tmp_path / MARKER).exists()


def test_two_entries_of_one_name(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        archive(tmp_path / "a.pt", attack(b"N"), **{"data.pkl": attack(ATTACKS["os.system"])})
    refused(tmp_path / "a.pt", "torch-zip.duplicate-name")


def test_names_that_differ_in_case_only(tmp_path: Path) -> None:
    archive(tmp_path / "a.pt", attack(b"N"), **{"DATA.PKL": attack(ATTACKS["os.system"])})
    refused(tmp_path / "a.pt", "torch-zip.case")


def test_two_entries_over_the_same_bytes(evil: Path) -> None:
    data = evil.read_bytes()
    first = data.index(CENTRAL)
    place = data[first + 42 : first + 46]
    patched(evil, CENTRAL, 42, place, entry=2)
    with refuses(FormatError, "torch-zip.overlap"):
        max_weights.load_weights(evil)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda data: b"MZ" + data, "format.unknown"),
        (lambda data: data[:60] + data, "torch-zip.directory-place"),
        (lambda data: data + b"tail", "torch-zip.trailing-data"),
    ],
    ids=["before", "a header before", "after"],
)
def test_another_file_before_or_after_the_archive(evil: Path, change: Callable[[bytes], bytes], rule: str) -> None:
    evil.write_bytes(change(evil.read_bytes()))
    with pytest.raises(WeightsError) as caught:
        max_weights.load_weights(evil)
    assert caught.value.rule == rule, caught.value


def test_a_placeholder_with_one_long_state_many_times_over(tmp_path: Path) -> None:
    """Small files whose names or parts would fill the memory."""
    long = b"}(" + b"".join(b"X\x06\x00\x00\x00%06dK\x01" % number for number in range(20_000)) + b"u"
    tensor = attack(b"N")[2:-1]
    pickled = (
        b"\x80\x02" + tensor + b"q\x640" + long + b"q\x650h\x65X\x01\x00\x00\x00whd0h\x65X\x01\x00\x00\x00whds0"
        b"c__main__\nThing\n)R" + b"heb" * 20_000 + b"."
    )
    path = archive(tmp_path / "a.pt", pickled)
    with refuses(FormatError, "pickle.leaves") as caught:
        max_weights.load_weights(path)
    assert caught.value.rule == "pickle.leaves"


def test_the_stride_of_a_dimension_of_one_element_is_any_number(tmp_path: Path) -> None:
    stride = b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"
    for kind, count, dtype in (("Float", 4, np.float32), ("ComplexDouble", 1, np.uint8)):
        tensor = attack(b"N").replace(b"FloatStorage", kind.encode() + b"Storage").replace(b"K\x04t", b"K%ct" % count)
        tensor = tensor.replace(b"K\x04\x85K\x01\x85", b"K\x01\x85" + stride + b"\x85")
        path = archive(tmp_path / "a.pt", tensor)
        found = np.asarray(max_weights.load_weights(path)["weight"].data())
        assert found.dtype == dtype
        assert found.tobytes() == struct.pack("<4f", 1, 2, 3, 4)[: found.nbytes]
        assert load(path)["weight"].numel() == 1
