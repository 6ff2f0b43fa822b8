"""Check the vocabulary of docs, docstrings, comments and identifiers: `python tools/vocabulary.py [PATH...]`.

Readers search for the terms of the field. TERMS has what is written instead of words that only this project would
use, and EXCEPTIONS the places where such a word is right. Sentences have at most MAX_WORDS words, and MAX_AVERAGE on
average in each page of the documentation. `--count` prints how often each term is left, and fails for none.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_WORDS = 35
MAX_AVERAGE = 20
MAX_CELL = 25
MAX_EXCEPTIONS = 30

# Generated pages, tables of data, and texts of others.
SKIPPED = ("docs/rules.md", "docs/commands.md", "docs/man/*", "docs/reference/*", "CHANGELOG.md", "tools/vocabulary.py")

# Where the texts in the code are read by users.
MESSAGES = ("src/", "crates/", "python/")

# What is found in prose, in any case, and what is written instead.
PROSE = {
    r"one after (?:the other|another)": "sequentially",
    r"as it is|as they are": "unchanged",
    r"of (?:its|their) own": "a copy; separate; own",
    r"so many": "N, or the number",
    r"whoever": "a reader, a caller",
    r"for want of": "without; not available",
    r"that there (?:is|are)(?: not| none)?": "existing; unsupported",
    r"(?:is|are) (?:also )?said (?:by|to be)": "is reported",
    r"says? who asks|who asks": "credentials",
    r"what has run|what it was run on": "tested configurations",
    r"(?:is|are|was|were) no more\b(?! than)": "removed",
    r"as wholes": "whole files, atomically",
    r"unasked": "implicitly",
    r"where to go on": "next steps",
    r"the least (?:work|that one could do)": "lower bound",
    r"misfortunes?": "fault injection",
    r"house rules?": "conventions",
    r"on the way": "during; staging",
    r"by way of": "through",
    r"under way": "in flight",
    r"put aside|aside": "spilled",
    r"go(?:es)? on\b(?! the)": "continue; cancel",
    r"beside(?! the point)": "and; next to; in addition to",
    r"made of": "composed of",
    r"let go of": "released",
    r"nobody|somebody": "no caller; a caller",
}

# Whole words of identifiers in snake case, and what they become.
IDENTIFIERS = {
    "go_on": "cancel",
    "made_of": "composed",
    "is_made": "is_composed",
    "as_it_is": "unchanged",
    "on_the_way": "staging_bytes",
    "by_way_of": "staging_bytes",
    "under_way": "in_flight",
    "led_to": "redirect_target",
    "slow_down": "on_throttle",
    "ended_well": "on_success",
    "load_apart": "materialize",
    "left_out": "excluded",
    "left_alone": "skipped",
    "asked_every": "POLL_INTERVAL",
    "unsaid": "unspecified",
    "writable_unsaid": "writability_unknown",
    "said": "declared",
    "told": "reported",
    "wanted": "requests",
    "touching": "overlapping",
    "bring": "read_into",
    "beside": "scratch_bytes",
    "room": "buffer; reserve",
    "stands": "exists",
    "standing": "existing",
    "aside": "spill",
    "ahead": "readahead",
}
# Names of types and constants.
TYPES = {
    "Wanted": "TensorRequest",
    "Choice": "ReadStrategy",
    "Together": "ShardedSave",
    "Tries": "RetryPolicy",
    "Gate": "ConcurrencyLimiter",
    "Said": "Declared",
    "Asked": "Request",
    "Standing": "ExistingObject",
    "Ahead": "Readahead",
}
BOUNDS = re.compile(r"\b_?(?:MOST|LEAST|FEWEST|LONGEST|SHORTEST|LARGEST|SMALLEST)(?:_[A-Z0-9_]+)?\b")


@dataclass(frozen=True)
class Allowed:
    """A place where a term is right."""

    term: str
    path: str
    reason: str


EXCEPTIONS: tuple[Allowed, ...] = ()


@dataclass(frozen=True)
class Hit:
    """A term, or a sentence, that is to be written in another way."""

    path: str
    line: int
    term: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: '{self.term}': say {self.instead}"


def files(paths: list[str]) -> Iterator[Path]:
    """Yield the tracked files of these paths that have prose or identifiers of ours."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z", *paths], capture_output=True, check=True)
    for name in listed.stdout.decode().split("\0"):
        if name.endswith((".md", ".py", ".pyi", ".rs")) and not any(fnmatch(name, skipped) for skipped in SKIPPED):
            yield ROOT / name


def prose(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a file that are prose, each with its first line."""
    if path.suffix == ".md":
        yield from _of_markdown(text)
    elif path.suffix == ".rs":
        yield from _paragraphs(_of_rust(text))
    else:
        yield from _paragraphs(_comments_of_python(text))
        yield from _docstrings(text)


def _paragraphs(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Join comments of consecutive lines."""
    begun, last, words = 0, -1, ""
    for number, line in lines:
        if number != last + 1 or not line.strip():
            if words.strip():
                yield begun, words
            begun, words = number, ""
        words = f"{words} {line.strip()}"
        last = number
    if words.strip():
        yield begun, words


def _of_rust(text: str) -> Iterator[tuple[int, str]]:
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.match(r"\s*//[/!]?(.*)", line):
            fenced ^= found[1].strip().startswith("```")
            yield number, "" if fenced or "```" in found[1] else found[1]


def _comments_of_python(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
            yield token.start[0], token.string.lstrip("#! ")


def _docstrings(text: str) -> Iterator[tuple[int, str]]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, kinds) or (docstring := ast.get_docstring(node)) is None:
            continue
        line = node.body[0].lineno
        for part in re.split(r"\n\s*\n", docstring):
            if not part.lstrip().startswith((">>>", "...")):
                yield line, " ".join(part.split())
            line += part.count("\n") + 2


def _of_markdown(text: str) -> Iterator[tuple[int, str]]:
    fenced, begun, words = False, 0, ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            line = ""
        is_own = line.lstrip().startswith(("|", "#", "- ", "* ", "<!--")) or re.match(r"\s*\d+\. ", line)
        if fenced or not line.strip() or is_own:
            if words.strip():
                yield begun, words
            begun, words = number, ""
        if not fenced and line.strip() and not line.lstrip().startswith("<!--"):
            if not words:
                begun = number
            words = f"{words} {line.strip()}"
    if words.strip():
        yield begun, words


_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|<[^>]+>|https?://\S+")


def sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph; code counts as one word. A cell of a table is one."""
    plain = _CODE.sub(" code ", paragraph)
    if plain.lstrip().startswith("|"):
        yield from (cell for cell in plain.split("|") if re.search(r"[A-Za-z]", cell))
        return
    yield from (one for one in re.split(r"(?<=[.!?:;])\s+(?=[A-Z`*\[])", plain) if one.strip())


def _terms(plain: str) -> Iterator[tuple[re.Match[str], str]]:
    for term, instead in PROSE.items():
        yield from ((found, instead) for found in re.finditer(rf"\b(?:{term})\b", plain, re.IGNORECASE))


def hits(path: Path) -> Iterator[Hit]:
    """Yield what is to be written in another way in a file."""
    name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    lengths = []
    for line, paragraph in prose(path, text):
        plain = _CODE.sub(" ", paragraph)
        yield from (Hit(name, line, one[0].lower(), instead) for one, instead in _terms(plain))
        most = MAX_CELL if paragraph.lstrip().startswith("|") else MAX_WORDS
        for sentence in sentences(paragraph):
            words = len(sentence.split())
            lengths.append(words)
            if words > most:
                start = " ".join(sentence.split()[:6])
                yield Hit(name, line, f"{start} …", f"it in several sentences: it has {words} words, of {most} at most")
    if path.suffix == ".md" and lengths and sum(lengths) > MAX_AVERAGE * len(lengths):
        yield Hit(name, 1, "sentences", f"less: {sum(lengths) / len(lengths):.0f} words on average")
    if path.suffix != ".md":
        yield from _of_identifiers(name, text, path.suffix == ".rs")
    if name.startswith(MESSAGES):
        for line, message in _messages(path, text):
            yield from (Hit(name, line, one[0].lower(), instead) for one, instead in _terms(message))


def _messages(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield the texts in the code of the package that readers see: those of several words."""
    if path.suffix == ".py":
        nodes = ast.walk(ast.parse(text))
        found = (
            (one.lineno, one.value) for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)
        )
    else:
        lines = enumerate(text.splitlines(), 1)
        found = ((n, one) for n, line in lines for one in re.findall(r'"((?:[^"\\]|\\.)*)"', line.split("//")[0]))
    yield from ((line, one) for line, one in found if len(one.split()) > 2)


# What is no code in Rust: comments, strings, and the characters that could begin a string.
_NO_CODE = re.compile(r'//[^\n]*|r(#*)".*?"\1|"(?:[^"\\]|\\.)*"|\'(?:\\.|[^\\\n])\'', re.DOTALL)


def _names(text: str, rust: bool) -> Iterator[tuple[int, str]]:
    """Yield the identifiers of a file, each with its line."""
    if not rust:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string
        return
    code = _NO_CODE.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(code.splitlines(), 1):
        yield from ((number, word) for word in re.findall(r"\b[A-Za-z_]\w*\b", line))


def _of_identifiers(name: str, text: str, rust: bool) -> Iterator[Hit]:
    for number, word in _names(text, rust):
        if instead := IDENTIFIERS.get(word.lower().strip("_")) or TYPES.get(word):
            yield Hit(name, number, word, f"`{instead}`")
        elif BOUNDS.fullmatch(word):
            yield Hit(name, number, word, "`MAX_…` or `MIN_…`")


def is_right(hit: Hit) -> bool:
    """Whether an exception says that the term is right there."""
    return any(one.term == hit.term and fnmatch(hit.path, one.path) for one in EXCEPTIONS)


def unused(found: list[Hit]) -> Iterator[str]:
    """Yield what is wrong with the exceptions themselves."""
    if len(EXCEPTIONS) > MAX_EXCEPTIONS:
        yield f"tools/vocabulary.py: {len(EXCEPTIONS)} exceptions, of {MAX_EXCEPTIONS} at most"
    for one in EXCEPTIONS:
        if not any(one.term == hit.term and fnmatch(hit.path, one.path) for hit in found):
            yield f"tools/vocabulary.py: the exception '{one.term}' in {one.path} allows nothing: remove it"


def main() -> int:
    """Print what is to be written in another way; the status is 1 if there is any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="what to check (all tracked files)")
    parser.add_argument("--count", action="store_true", help="print how often each term is left")
    arguments = parser.parse_args()
    everything = [hit for path in files(arguments.paths) for hit in hits(path)]
    found = [hit for hit in everything if not is_right(hit)]
    if arguments.count:
        for instead, count in Counter(hit.instead for hit in found if "words" not in hit.instead).most_common():
            print(f"{count:6} say {instead}")
        print(f"{sum('words' in hit.instead for hit in found):6} sentences, cells and pages that are too long")
        return 0
    wrong = [*map(str, found), *(() if arguments.paths else unused(everything))]
    if wrong:
        print(*wrong, sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
