"""The command line as a process of its own, as people and scripts start it."""

import os
import subprocess
import sys
from typing import NamedTuple

COMMAND = [sys.executable, "-m", "max_weights"]
# What changes the output in the terminal of whoever runs the tests.
SETTINGS = ("CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "FORCE_COLOR", "LANG", "LC_ALL", "LC_CTYPE", "NO_COLOR")
# Runs the command line, and adds the most memory that the process held, in MB. /proc has that of this program alone:
# getrusage counts what the process was before it, too.
MEASURED = """
import sys
from max_weights._core import command_line
status = command_line(["max-weights", *sys.argv[1:]])
peak = open("/proc/self/status").read().split("VmHWM:")[1].split()[0]
print(int(peak) // 1024, file=sys.stderr)
sys.exit(status)
"""


class Done(NamedTuple):
    """What a command left behind."""

    status: int
    stdout: str
    stderr: str


def environment(**more: str) -> dict[str, str]:
    """The environment of this process, where characters are UTF-8 and nothing is said of colours or columns."""
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    return {**kept, "LC_ALL": "C.UTF-8", **more}


def run(*arguments: object, timeout: float = 120, **variables: str) -> Done:
    """Run a command in a process whose output is a pipe; further arguments are variables of its environment."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, env=environment(**variables), timeout=timeout
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def listed(*arguments: object, **variables: str) -> str:
    """What a command prints that finds nothing wrong."""
    done = run(*arguments, **variables)
    assert (done.status, done.stderr) == (0, "")
    return done.stdout


def measured(*arguments: object) -> tuple[Done, int]:
    """The same, and the most memory that the process held, in MB."""
    command = [sys.executable, "-c", MEASURED, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, env=environment(), timeout=120, encoding="utf-8")
    *lines, peak = done.stderr.splitlines()
    return Done(done.returncode, done.stdout, "".join(f"{line}\n" for line in lines)), int(peak)


def rows(text: str) -> dict[str, str]:
    """The rows of `show` by label."""
    lines = text.split("\n\n")[0].splitlines()[1:]
    return {line.split()[0]: line.strip().split(maxsplit=1)[1] for line in lines}
