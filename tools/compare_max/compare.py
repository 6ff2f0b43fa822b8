"""Run the programs with MAX and with this package, and compare the results.

`python tools/compare_max/compare.py --max .venv-max/bin/python` runs both, stores MAX's results in `max.json`, and
writes the page of differences. Without `--max` the package is compared with the stored results. The exit status is 1 if
an unmarked fact differs, or if a fact that is marked as a deliberate difference does not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from comparing import Result, compare
from differences import DIFFERENCES
from page import page

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "max_differences.md"
KEPT = HERE / "max.json"


def facts_of(python: str, package: str, programs: list[str]) -> dict[str, dict[str, object]]:
    """Return the results of the programs under an interpreter that has the package."""
    command = [python, str(HERE / "runner.py"), package, *programs]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=540)
    found: dict[str, dict[str, object]] = json.loads(done.stdout)
    return found


def table(results: list[Result]) -> str:
    """One line a program."""
    heads = ("program", "facts", "alike", "deliberate", "unexplained", "no longer")
    rows = [
        (result.program, *map(str, (result.count, result.alike, *map(len, result.lists()))))
        for result in sorted(results, key=lambda result: result.program)
    ]
    return "\n".join(f"{row[0]:14}" + "".join(f"{cell:>13}" for cell in row[1:]) for row in (heads, *rows))


def one_fact_a_line(facts: dict[str, dict[str, object]]) -> str:
    """The same as JSON, so that a change of one fact is a change of one line."""
    programs = (
        f"{json.dumps(program)}: {{\n"
        + ",\n".join(f" {json.dumps(line)}: {json.dumps(fact)}" for line, fact in of.items())
        for program, of in facts.items()
    )
    return "{\n" + "\n},\n".join(programs) + "\n}\n}\n"


def main() -> int:
    """Compare, and print the table and the errors; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help="programs to run, by name; none: all")
    parser.add_argument("--max", metavar="PYTHON", help="an interpreter that has MAX")
    parser.add_argument("--all", action="store_true", help="print the deliberate differences too")
    options = parser.parse_args()
    ours = facts_of(sys.executable, "max_weights", options.programs)
    if options.max:
        theirs = facts_of(options.max, "max", options.programs)
        if not options.programs:
            KEPT.write_text(one_fact_a_line(theirs), encoding="utf-8")
    else:
        theirs = json.loads(KEPT.read_text(encoding="utf-8"))
    results = [compare(program, theirs[program], facts) for program, facts in ours.items()]
    for result in results:
        for line in result.complaints(options.all):
            print(line)
    print(table(results))
    if options.max and not options.programs and not any(result.wrong for result in results):
        PAGE.write_text(page(results), encoding="utf-8")
    unused = set() if options.programs else set(DIFFERENCES) - {fact.mark for r in results for fact in r.deliberate}
    if unused:
        print("listed, and shown by no program:", ", ".join(sorted(unused)))
    return int(bool(unused) or any(result.wrong for result in results))


if __name__ == "__main__":
    sys.exit(main())
