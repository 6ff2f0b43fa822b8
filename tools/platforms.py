"""Run the tests on other platforms under emulation: `python tools/platforms.py aarch64 musl`.

`make platforms` calls it, on x86-64 Linux of the Debian family. The platforms:

Linux on ARM (aarch64): the Rust tests, and the wheel with NumPy alone (`wheel_check.py`), run by qemu. The libraries
    and Python for ARM are Debian packages, unpacked into a folder, not installed.
Windows (windows): the Rust tests of the numerics and of the core, run by Wine.
Static Linux (musl): the program `max-weights` (with URLs), in a root folder with one model and nothing else.

zig links for all of them. Programs of aarch64 start other programs of aarch64, so the emulator is registered with the
kernel, in a separate namespace that leaves the host unchanged. All files are below `target/platforms`. The exit status
is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "platforms"
CRATES = ("max-weights-kernels", "max-weights", "max-weights-check", "max-weights-cli", "max-weights-remote")
ARM_PACKAGES = ("libgcc-s1", "libstdc++6", "python3-minimal", "python3-venv", "ca-certificates")
"""Debian packages in the folder of the other processor's libraries; their dependencies are added."""
HEADER = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
"""The magic of a program for 64-bit ARM; the last bit of the type is masked, since programs can be shared objects."""
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
PROCESS_PRNG = """
__declspec(dllimport) unsigned char SystemFunction036(void *, unsigned long);
__declspec(dllexport) int ProcessPrng(unsigned char *at, unsigned long long len) {
    for (; len > 1048576; at += 1048576, len -= 1048576)
        if (!SystemFunction036(at, 1048576)) return 0;
    return SystemFunction036(at, (unsigned long)len);
}
"""
"""Random bytes for Rust's standard library, by the function that provides them in Wine before version 9."""
_RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;", re.MULTILINE)
_FAILED = re.compile(r"^test (.+) \.\.\. FAILED$", re.MULTILINE)


@dataclass
class Outcome:
    """The result of one run on a platform."""

    platform: str
    what: str
    passed: int
    failed: int
    ignored: int
    seconds: float
    broken: bool = False
    """Whether anything but a test failed: a build, or a program that was ended by a signal."""

    def row(self) -> str:
        """Its row of the table."""
        failed = f"{self.failed:,}" + (", and it did not end well" if self.broken else "")
        return (
            f"| {self.platform} | {self.what} | {self.passed:,} | {failed} | {self.ignored:,} | {self.seconds:,.0f} |"
        )


def declared(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> tuple[str, int]:
    """Run a command; show its output immediately, and return it with the exit status."""
    print(f"$ {shlex.join(map(str, command))}", flush=True)
    # Tells tests with limits on time or memory that they run in an emulator.
    variables = os.environ | {"MAX_WEIGHTS_EMULATED": "1"} | dict(environment or {})
    lines = []
    with subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for line in process.stdout or ():
            lines.append(line)
            if not re.match(r"test .* \.\.\. (ok|ignored)|\s*$", line):
                print(line, end="", flush=True)
    return "".join(lines), process.returncode


def need(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
    """Run a command that has to succeed."""
    if declared(command, environment)[1]:
        sys.exit(f"platforms: this failed: {shlex.join(map(str, command))}")


def read_into(programs: Sequence[str], packages: Sequence[str]) -> str:
    """Return the path of the first of these programs found; install the packages if none is."""
    places = os.environ["PATH"] + ":/usr/lib/wine"  # Debian's wine64 is on no path
    for attempt in range(2):
        for program in programs:
            if path := shutil.which(program, path=places):
                return path
        if attempt == 0 and shutil.which("apt-get"):
            as_root = [] if os.geteuid() == 0 else ["sudo"]
            declared([*as_root, "apt-get", "update", "-qq"])
            quiet = ["-y", "-qq", "--no-install-recommends"]
            declared([*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", *quiet, *packages])
    sys.exit(f"platforms: {programs[0]} is missing: install it (Debian, Ubuntu: apt install {' '.join(packages)})")


def run_rust_tests(
    platform: str,
    target: str,
    crates: Sequence[str],
    how: str,
    around: Sequence[str | Path] = (),
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Build the Rust tests of crates for a target, and run them."""
    began = time.monotonic()
    command = ["cargo-zigbuild", "test", "--target", target, "--lib", "--bins", "--tests", "--no-fail-fast"]
    command += [part for crate in crates for part in ("--package", crate)]
    need([*command, "--no-run", "--quiet"])
    output, status = declared([*around, *command], environment)
    counts = [sum(map(int, column)) for column in zip(*_RESULT.findall(output), strict=True)] or [0, 0, 0]
    for name in _FAILED.findall(output):
        print(f"{platform}: FAILED {name}", flush=True)
    broken = bool(status) and not counts[1]
    what = f"Rust tests of {', '.join(crates)}, {how}"
    return Outcome(platform, what, counts[0], counts[1], counts[2], time.monotonic() - began, broken)


def arm_libraries() -> Path:
    """Return a folder with the libraries and Python for 64-bit ARM, unpacked from Debian's packages on first use."""
    folder = FOLDER / "aarch64" / "system"
    done = folder / ".packages"
    if done.exists() and done.read_text() == " ".join(ARM_PACKAGES):
        return folder
    apt = FOLDER / "aarch64" / "apt"
    for part in (apt / "state/lists/partial", apt / "cache/archives/partial"):
        part.mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()  # nothing is installed there, so that apt lists all dependencies
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
    }
    command: list[str | Path] = ["apt-get", "-qq"]
    command += [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    need([*command, "update"])
    need([*command, "install", "-y", "--download-only", "--no-install-recommends", *ARM_PACKAGES])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
    done.write_text(" ".join(ARM_PACKAGES))
    return folder


def arm_namespace(emulator: str, libraries: Path) -> list[str | Path]:
    """Return a command prefix under which programs of 64-bit ARM can be started; the rest of the system is unaffected.

    In user and mount namespaces, the kernel's table of interpreters is private. The prefix also creates the folder in
    /etc where the emulator looks for libraries by default: some tests clear all environment variables.
    """
    etc = FOLDER / "aarch64" / "etc"
    etc.mkdir(parents=True, exist_ok=True)
    place = etc / "qemu-binfmt" / "aarch64"
    place.parent.mkdir(exist_ok=True)
    if not place.is_symlink():
        place.symlink_to(libraries)
    inside = FOLDER / "aarch64" / "inside.sh"
    entry = f":aarch64:M::{HEADER}:{MASK}:{emulator}:F"
    lines = [
        "set -e",
        "mount -t binfmt_misc none /proc/sys/fs/binfmt_misc",
        f"mount -t overlay -o lowerdir={shlex.quote(str(etc))}:/etc overlay /etc",
        f"printf %s '{entry}' >/proc/sys/fs/binfmt_misc/register",
        'exec "$@"',
    ]
    inside.write_text("\n".join(lines) + "\n")
    before: list[str | Path] = ["unshare", "--map-root-user", "--mount", "sh", inside]
    if declared([*before, "true"])[1]:
        sys.exit(
            "platforms: the kernel does not support binary formats per namespace: that needs Linux 6.7 or "
            "newer, and user namespaces (sysctl kernel.unprivileged_userns_clone=1, and for AppArmor "
            "kernel.apparmor_restrict_unprivileged_userns=0)"
        )
    return before


def arm_wheel(before: Sequence[str | Path], libraries: Path, environment: Mapping[str, str]) -> Outcome:
    """Build the wheel for Linux on ARM, and try it with NumPy alone."""
    began = time.monotonic()
    folder = FOLDER / "aarch64" / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    target = ["--target", "aarch64-unknown-linux-gnu", "--zig", "--compatibility", "manylinux2014"]
    # The binding crate must not use the configuration of this machine's Python.
    need(["env", "-u", "PYO3_PYTHON", "maturin", "build", "--profile", "quick", "--out", folder, *target])
    (wheel,) = folder.glob("*.whl")
    python = next(path for path in sorted((libraries / "usr/bin").glob("python3.*")) if path.suffix[1:].isdigit())
    # The profile strips less than a release.
    check: list[str | Path] = [sys.executable, ROOT / "tools" / "wheel_check.py", wheel, "--largest", "12000000"]
    check += ["--python", python]
    output, status = declared([*before, *check], environment)
    passed = output.count("the smoke test pass")
    return Outcome(
        "aarch64",
        f"the wheel with NumPy alone, in {python.name}, under qemu",
        passed,
        int(status != 0),
        0,
        time.monotonic() - began,
    )


def aarch64() -> list[Outcome]:
    """Linux on ARM."""
    emulator = read_into(["qemu-aarch64-static"], ["qemu-user-static"])
    libraries = arm_libraries()
    before = arm_namespace(emulator, libraries)
    environment = {"QEMU_LD_PREFIX": str(libraries)}
    return [
        run_rust_tests("aarch64", "aarch64-unknown-linux-gnu", CRATES, "under qemu", before, environment),
        # The processor above has bf16 instructions, which are optional.
        run_rust_tests(
            "aarch64",
            "aarch64-unknown-linux-gnu",
            ["max-weights-kernels"],
            "as a Cortex-A72, under qemu",
            before,
            environment | {"QEMU_CPU": "cortex-a72"},
        ),
        arm_wheel(before, libraries, environment),
    ]


def windows() -> list[Outcome]:
    """Windows."""
    wine = read_into(["wine64", "wine"], ["wine", "wine64"])
    environment = {
        "CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER": wine,
        "WINEPREFIX": str(FOLDER / "windows"),
        "WINEDEBUG": "-all",
    }
    library = FOLDER / "windows" / "drive_c" / "windows" / "system32" / "bcryptprimitives.dll"
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not library.parent.exists():
        declared([wine, "wineboot", "--init"], environment)
    if not library.exists():
        source = FOLDER / "bcryptprimitives.c"
        source.write_text(PROCESS_PRNG)
        zig = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-windows-gnu", "-shared"]
        need([*zig, "-o", library, source, "-ladvapi32"])
    return [run_rust_tests("windows", "x86_64-pc-windows-gnu", CRATES[:2], "under Wine", environment=environment)]


def musl() -> list[Outcome]:
    """Linux without any library: a static program in a separate root folder."""
    began = time.monotonic()
    target = "x86_64-unknown-linux-musl"
    build = ["cargo-zigbuild", "build", "--profile", "quick", "--package", "max-weights-cli", "--features", "remote"]
    need([*build, "--target", target])
    root = FOLDER / "musl"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    shutil.copy(FOLDER.parent / target / "quick" / "max-weights", root)
    shutil.copy(Path(os.environ.get("MAX_WEIGHTS_MODELS", ROOT / ".models")) / "minilm.safetensors", root)
    alone: list[str | Path] = ["unshare", "--map-root-user", "chroot", root, "/max-weights"]
    commands = ("--version", "ls /minilm.safetensors", "validate /minilm.safetensors")
    good = 0
    for command in commands:
        output, status = declared([*alone, *command.split()])
        good += status == 0 and bool(output)
    what = "`max-weights` `ls`, `validate`, static, alone in a root folder with a model"
    return [Outcome("musl", what, good, len(commands) - good, 0, time.monotonic() - began)]


PLATFORMS: dict[str, tuple[str, Callable[[], list[Outcome]]]] = {
    "aarch64": ("aarch64-unknown-linux-gnu", aarch64),
    "windows": ("x86_64-pc-windows-gnu", windows),
    "musl": ("x86_64-unknown-linux-musl", musl),
}


def main() -> int:
    """Run the requested platforms, and print a table of the results; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("platforms", nargs="*", metavar="platform", help=f"one of {', '.join(PLATFORMS)} (all)")
    names = parser.parse_args().platforms or list(PLATFORMS)
    if unknown := set(names) - set(PLATFORMS):
        parser.error(f"no such platform: {', '.join(sorted(unknown))}")
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        sys.exit("platforms: this runs on x86-64 Linux")
    need(["rustup", "target", "add", *(PLATFORMS[name][0] for name in names)])
    outcomes = [one for name in names for one in PLATFORMS[name][1]()]
    print("\n| platform | what was run | passed | failed | ignored | seconds |\n|---|---|---:|---:|---:|---:|")
    print("\n".join(one.row() for one in outcomes))
    return int(any(one.failed or one.broken for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
