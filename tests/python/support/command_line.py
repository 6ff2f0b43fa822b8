"""The command line in a separate process, as people and scripts start it."""

import os
import subprocess
import sys
from typing import NamedTuple

COMMAND = [sys.executable, "-m", "max_weights"]
# Variables of the developer's terminal that change the output.
SETTINGS = ("CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "FORCE_COLOR", "LANG", "LC_ALL", "LC_CTYPE", "NO_COLOR")
# Runs the command line, and adds its peak memory in MB, from /proc: getrusage includes the process before exec.
MEASURED = """
import sys
from max_weights._core import command_line
status = command_line(["max-weights", *sys.argv[1:]])
peak = open("/proc/self/status").read().split("VmHWM:")[1].split()[0]
print(int(peak) // 1024, file=sys.stderr)
sys.exit(status)
"""


class Done(NamedTuple):
    """The result of a command."""

    status: int
    stdout: str
    stderr: str


def environment(**more: str) -> dict[str, str]:
    """The environment of this process, with UTF-8 and without settings of colours or columns."""
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    return {**kept, "LC_ALL": "C.UTF-8", **more}


def run(*arguments: object, timeout: float = 120, **variables: str) -> Done:
    """Run a command with piped output; further arguments are environment variables."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, env=environment(**variables), timeout=timeout
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def listed(*arguments: object, **variables: str) -> str:
    """The output of a command that finds nothing wrong."""
    done = run(*arguments, **variables)
    assert (done.status, done.stderr) == (0, "")
    return done.stdout


def measured(*arguments: object) -> tuple[Done, int]:
    """The same, and the peak memory of the process in MB."""
    command = [sys.executable, "-c", MEASURED, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, env=environment(), timeout=120, encoding="utf-8")
    *lines, peak = done.stderr.splitlines()
    return Done(done.returncode, done.stdout, "".join(f"{line}\n" for line in lines)), int(peak)


def rows(text: str) -> dict[str, str]:
    """The rows of `show` by label."""
    lines = text.split("\n\n")[0].splitlines()[1:]
    return {line.split()[0]: line.strip().split(maxsplit=1)[1] for line in lines}
