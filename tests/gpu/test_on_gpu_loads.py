"""`load(device=…)` of generated files: the names, dtypes, shapes and bits of what `load` gives on the CPU."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gpu_files
import max_weights
from gpu_support import DEVICE, PIECE, STAND_IN, OnDevice, bits, each
from max_weights import FileChangedError, load_weights, release_memory
from max_weights._benching.cuda import Driver
from max_weights.driver import Device

FILES: dict[str, Callable[[Path], Path]] = {
    "safetensors": lambda folder: gpu_files.safetensors(folder / "a.safetensors"),
    "sharded": lambda folder: gpu_files.sharded(folder / "sharded"),
    "gguf": lambda folder: gpu_files.gguf(folder / "a.gguf"),
    "torch": lambda folder: gpu_files.torch_zip(folder / "a.pt"),
}
FLOATS = ("float32", "float16", "bfloat16")
OPTIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "packed": {"packed": "keep"},
    **{name: {"dtype": name} for name in FLOATS},
    "float64": {"dtype": "float64", "select": re.compile(r"(large|around|small|kind.F|[a-z]*$)")},
    "float8": {"dtype": "float8_e4m3fn", "select": re.compile(r"(large|around|small)")},
    "per-tensor": {"copy": "per-tensor"},
    "per-tensor, bfloat16": {"copy": "per-tensor", "dtype": "bfloat16"},
    "read": {"backend": "read"},
    "read, drop_cache": {"backend": "read", "drop_cache": True},
    "direct": {"backend": "direct"},
    "direct, float32": {"backend": "direct", "dtype": "float32"},
    "one thread": {"threads": 1},
    "many threads": {"threads": 16},
    "selected and renamed": {"select": re.compile(r".*(weight|[0-9])$"), "rename": str.upper},
}
ENDED = "enough"
LARGE = 256 if STAND_IN is None else 64  # MiB


class Files(OnDevice):
    """A folder with the files, for a class of tests."""

    folder: ClassVar[Path]
    made: ClassVar[dict[str, Path]]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.folder = Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.made = {}

    def file(self, name: str) -> Path:
        if name not in self.made:
            try:
                self.made[name] = FILES[name](self.folder)
            except ImportError as error:
                self.skipTest(f"torch, which writes its files, is not installed: {error}")
        return self.made[name]

    def large(self, mebibytes: int) -> Path:
        path = self.folder / f"large{mebibytes}.safetensors"
        return path if path.exists() else gpu_files.large(path, mebibytes)

    def assert_loads_equally(self, path: Path, **options: Any) -> None:
        weights = load_weights(path)
        if path.suffix == ".gguf" and not options.keys() & {"dtype", "packed"}:
            options["dtype"] = "float32"  # packed blocks become floats only where a dtype asks for it
        expected = weights.load(**({"copy": True} | options))
        self.assertTrue(expected, options)
        there = weights.load(device=DEVICE, **options)
        self.assertEqual(list(there), list(expected))
        for name, tensor in expected.items():
            self.assertEqual(there[name].device, Device("gpu", 0), name)
            # The blocks of the GGUF file have scales of random bits.
            floats = path.suffix == ".gguf" and tensor.dtype.name in FLOATS
            same = self.assert_equal_but_for_nans if floats else self.assert_same
            same(there[name], tensor, (path.name, name, options))


class Loads(Files):
    """What arrives."""

    @each([(file, option) for file in FILES for option in OPTIONS], " ".join)
    def test_equals_the_cpu(self, case: tuple[str, str]) -> None:
        file, option = case
        path = self.file(file)
        select = OPTIONS[option].get("select")
        if select is not None and not any(select.match(info.name) for info in max_weights.infos(load_weights(path))):
            self.skipTest(f"{file} has nothing that this selects")
        self.assert_loads_equally(path, **OPTIONS[option])

    def test_a_large_file_in_every_way(self) -> None:
        path = self.large(LARGE)
        for options in ({}, {"dtype": "float32"}, {"backend": "direct"}, {"backend": "read"}, {"threads": 3}):
            self.assert_loads_equally(path, **options)
        expected = load_weights(path).load(copy=True)
        for most in (2 * PIECE, 5 * PIECE):
            for name, tensor in load_weights(path).load(device=DEVICE, max_memory=most).items():
                self.assert_same(tensor, expected[name], most)

    def test_again_and_again_into_memory_that_was_used(self) -> None:
        path = self.large(LARGE)
        expected = bits(load_weights(path).load(copy=True)["layer.7.weight"])
        for _ in range(20):
            there = load_weights(path).load(device=DEVICE)
            self.assertTrue((bits(there["layer.7.weight"]) == expected).all())
            del there

    def test_a_read_tensor_of_a_load_that_goes_on(self) -> None:
        weights = load_weights(self.large(LARGE))
        last = max_weights.infos(weights)[-1].name
        expected = weights.load(last, copy=True)[last]
        self.assert_same(weights.load(device=DEVICE)[last], expected)  # its copy was asked for last

    def test_threads_load_at_a_time(self) -> None:
        path, wrong = self.large(LARGE), list[str]()
        expected = load_weights(path).load(copy=True)

        def work() -> None:
            there = load_weights(path).load(device=DEVICE)
            wrong.extend(name for name, tensor in expected.items() if (bits(there[name]) != bits(tensor)).any())

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_another_device(self) -> None:
        other = self.second_device()
        weights = load_weights(self.file("safetensors"))
        for name, tensor in weights.load(device=other).items():
            self.assert_same(tensor, weights.load(name, copy=True)[name])

    def test_tied_tensors_stay_tied(self) -> None:
        there = load_weights(self.file("torch")).load(device=DEVICE)
        self.assertEqual(there["tied"]._data_ptr(), there["whole"]._data_ptr())

    def test_pinned_memory_keeps_to_its_bound(self) -> None:
        weights = load_weights(self.large(LARGE))
        for most in (2 * PIECE, 16 * PIECE, None):
            release_memory()
            weights.load(device=DEVICE, max_memory=most)
            self.assertLessEqual(release_memory(), most or 512 << 20)


class Faults(Files):
    """What goes wrong, and that the device works afterwards."""

    def test_a_file_that_is_truncated_meanwhile(self) -> None:
        path = gpu_files.large(self.folder / "short.safetensors", 64)
        with self.assertRaisesRegex(FileChangedError, "short"):
            load_weights(path).load(device=DEVICE, progress=lambda *_: os.truncate(path, 20 << 20))
        self.assert_loads_equally(self.file("safetensors"))

    def test_a_callback_that_raises(self) -> None:
        def end(*_: int) -> None:
            raise LookupError(ENDED)

        with self.assertRaisesRegex(LookupError, ENDED):
            load_weights(self.large(LARGE)).load(device=DEVICE, progress=end)
        self.assert_loads_equally(self.file("safetensors"))

    def test_ctrl_c(self) -> None:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        several: tuple[dict[str, Any], ...] = ({}, {"dtype": "float32"}, {"backend": "direct"})
        for options in several:
            with self.assertRaises(KeyboardInterrupt):
                load_weights(self.large(LARGE)).load(
                    device=DEVICE, progress=lambda *_: signal.raise_signal(signal.SIGINT), **options
                )
        self.assert_loads_equally(self.file("safetensors"))

    def test_too_little_memory_names_the_tensor_and_the_bytes(self) -> None:
        weights = load_weights(self.large(LARGE))
        with _Filled(leaving=40 << 20):
            message = self.refused(lambda: weights.load(device=DEVICE))
            self.assertRegex(message, r"no room for 'layer\.0\.weight' of 8388608 bytes and \d+ more .*OUT_OF_MEMORY")
            message = self.refused(lambda: weights.load(device=DEVICE, copy="per-tensor"))  # half-way
            self.assertRegex(message, r"no room for 'layer\.\d+\.weight' of 8388608 bytes: .*OUT_OF_MEMORY")
        self.assert_loads_equally(self.file("safetensors"))


class _Filled:
    """While this lasts, the device has little memory left."""

    def __init__(self, leaving: int) -> None:
        self._driver, self._leaving = Driver(0), leaving

    def __enter__(self) -> None:
        self._taken: list[ctypes.c_uint64] = []
        for step in (1 << 30, 1 << 26, 1 << 24):
            while self._driver.memory()[0] - step >= self._leaving:
                address = ctypes.c_uint64()
                self._driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(step))
                self._taken.append(address)

    def __exit__(self, *_: object) -> None:
        for address in self._taken:
            self._driver.call("cuMemFree_v2", address)
