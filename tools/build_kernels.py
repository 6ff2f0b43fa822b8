"""Compile the kernels of src/device/kernels to `kernels.ptx`, which the extension embeds.

Its argument is a folder where `uv pip install --target` put NVIDIA's compiler (`requirements.txt` in the folder of the
kernels); it needs no GPU and no driver. With `--check` it compares with the file instead of writing it, and assembles
it for every supported processor. A warning, or a register that is spilled to memory, is a failure.
"""

import argparse
import ctypes
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[1] / "src" / "device" / "kernels"
PTX = KERNELS / "kernels.ptx"
SOURCES = sorted(KERNELS.glob("*.cu"))
HEADERS = sorted(KERNELS.glob("*.h"))
OPTIONS = [
    "--gpu-architecture=compute_75",
    "--std=c++20",
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
]
PROCESSORS = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]


class Compiler:
    """NVRTC, of a folder of packages."""

    def __init__(self, packages: Path) -> None:
        folder = packages / "nvidia" / "cuda_nvrtc" / "lib"
        ctypes.CDLL(str(folder / "libnvrtc-builtins.so.12.0"), mode=ctypes.RTLD_GLOBAL)  # which it opens by name
        self._library = ctypes.CDLL(str(folder / "libnvrtc.so.12"))

    def compile(self, source: str) -> str:
        """The PTX of a source, which may include the headers."""
        texts = [path.read_bytes() for path in HEADERS]
        names = [path.name.encode() for path in HEADERS]
        count = len(names)
        program = ctypes.c_void_p()
        create = self._library.nvrtcCreateProgram
        headers = (ctypes.c_char_p * count)(*texts), (ctypes.c_char_p * count)(*names)
        self._check(create(ctypes.byref(program), source.encode(), b"kernels.cu", count, *headers))
        options = (ctypes.c_char_p * len(OPTIONS))(*(option.encode() for option in OPTIONS))
        failed = self._library.nvrtcCompileProgram(program, len(OPTIONS), options)
        log = self._text("ProgramLog", program).strip()
        if failed or log:
            sys.exit(f"NVRTC: {log}")
        return self._text("PTX", program)

    def _text(self, what: str, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._check(self._library[f"nvrtcGet{what}Size"](program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        self._check(self._library[f"nvrtcGet{what}"](program, text))
        return text.value.decode()

    def _check(self, code: int) -> None:
        if code:
            text = self._library.nvrtcGetErrorString
            text.restype = ctypes.c_char_p
            sys.exit(f"NVRTC: {text(code).decode()}")


def ptx(packages: Path) -> str:
    """The PTX of all sources, without comments and constants that nothing uses."""
    source = "".join(f"{path.read_text()}\n" for path in SOURCES)
    text = Compiler(packages).compile(source)
    used = Counter(re.findall(r"[\w$]+", text))
    constant = re.compile(r"\.global (?:\.?\w+ )*?([\w$]+)(\[\d+\])?( = .*)?;")
    kept = []
    for line in text.splitlines():
        code = line.split("//")[0].rstrip()
        named = constant.fullmatch(code)
        if code and not (named and used[named[1]] == 1):
            kept.append(f"{code}\n")
    return "".join(kept)


def assembled(packages: Path, processor: str) -> list[str]:
    """Return the assembler's complaints about the file for a processor."""
    ptxas = packages / "nvidia" / "cuda_nvcc" / "bin" / "ptxas"
    with tempfile.TemporaryDirectory() as folder:
        call = [str(ptxas), "-v", f"-arch={processor}", "-o", str(Path(folder, "out")), str(PTX)]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    none = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
    spills = [line for line in lines if "spill" in line and line.strip() != none]
    wrong = [line for line in lines if "warning" in line or "error" in line or "fatal" in line]
    if done.returncode and not wrong:
        wrong = [f"ptxas ended with {done.returncode}"]
    return [f"{processor}: {line.strip()}" for line in wrong + spills]


def main() -> None:
    """Write the file, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", type=Path, help="the folder with NVIDIA's packages")
    parser.add_argument("--check", action="store_true", help="compare and assemble, and write nothing")
    given = parser.parse_args()
    text = ptx(given.packages)
    if not given.check:
        PTX.write_text(text)
        return
    if not PTX.exists() or text != PTX.read_text():
        sys.exit(f"{PTX} is not what the sources compile to: make kernels")
    with ThreadPoolExecutor(2) as pool:
        wrong = [line for lines in pool.map(lambda name: assembled(given.packages, name), PROCESSORS) for line in lines]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"kernels.ptx: {text.count('.entry')} kernels, as compiled, for {', '.join(PROCESSORS)}")


if __name__ == "__main__":
    main()
