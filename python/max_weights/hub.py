"""Models in the local Hugging Face cache, by name. The network is never used.

The layout is that of `huggingface_hub`: `models--ORG--MODEL/refs/REVISION` holds the commit that a branch or tag stands
for, and `snapshots/COMMIT` the files (as links).
"""

from __future__ import annotations

import os
import re

from max_weights._core import near_names, printable, shown
from max_weights.errors import MissingFileError

_NAME = re.compile(r"(?P<repo>[\w][\w.-]*(?:/[\w][\w.-]*)?)(?:@(?P<revision>[\w][\w./-]*))?", re.ASCII)
_OF_FILES = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".json")
_DEFAULT_REVISION = "main"


def cache_folder() -> str:
    """The folder of the cache: `HF_HUB_CACHE`, else `HF_HOME`/hub, else the default below the user's cache folder."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return os.path.expanduser(cache)
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return os.path.join(os.path.expanduser(home), "hub")


def find_in_cache(name: str) -> str | None:
    """The folder of a model's snapshot, or None if the text cannot be a model's name, or rather names a file.

    Args:
        name: `ORG/MODEL`, or with `@REVISION` (a branch, a tag, a commit); the revision is `main` if it is left out.

    Raises:
        MissingFileError: the model or the revision is not in the cache; the message names the command for it.
    """
    match = _NAME.fullmatch(name)
    if match is None or "/" not in match["repo"] or ".." in name:
        return None
    repo, revision = match["repo"], match["revision"] or _DEFAULT_REVISION
    cache = cache_folder()
    model = os.path.join(cache, "models--" + repo.replace("/", "--"))
    if not os.path.isdir(model):
        if name.endswith(_OF_FILES) or os.path.isdir(os.path.dirname(name)):
            return None
        raise _miss(name, repo, match["revision"], f"neither a file nor a model in the cache {printable(cache)}")
    commit = revision
    try:
        with open(os.path.join(model, "refs", *revision.split("/")), encoding="ascii") as file:
            commit = file.read(64).strip()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        pass  # a commit stands for itself
    snapshot = os.path.join(model, "snapshots", commit)
    if not commit or os.path.basename(commit) != commit or ".." in commit or not os.path.isdir(snapshot):
        found = ", ".join(map(shown, _revisions(model))) or "none"
        raise _miss(
            name, repo, match["revision"], f"the cache has no revision {revision!r} of the model (it has: {found})"
        )
    return snapshot


def _revisions(model: str) -> list[str]:
    """The names below `refs`, and the commits below `snapshots`."""
    refs = os.path.join(model, "refs")
    names = [os.path.relpath(os.path.join(folder, file), refs) for folder, _, files in os.walk(refs) for file in files]
    snapshots = os.path.join(model, "snapshots")
    return sorted(names) + (sorted(os.listdir(snapshots)) if os.path.isdir(snapshots) else [])


def _miss(name: str, repo: str, revision: str | None, cause: str) -> MissingFileError:
    import errno

    command = f"hf download {repo}" + (f" --revision {revision}" if revision else "")
    return MissingFileError(errno.ENOENT, f"{cause}; download it with `{command}`", name)


def with_near_paths(error: MissingFileError) -> MissingFileError:
    """The error, with the names that are near the first part of its path that does not exist."""
    path = os.fspath(error.filename)
    while (folder := os.path.dirname(path)) and not os.path.isdir(folder):
        path = folder
    try:
        names = os.listdir(folder or ".")
        (near,) = near_names(names, [os.path.basename(path)])
    except OSError:
        return error
    if not near:
        return error
    found = ", ".join(printable(os.path.join(folder, name)) for name in near)
    return MissingFileError(error.errno, f"{error.strerror}; did you mean {found}?", error.filename)
