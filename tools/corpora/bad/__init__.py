"""Bad files, none of them an attack: at least one for each rule about weights that a file can break.

What is validated with `content` stands in the group "values". An item says in `named` which rule it is made for.
"""

from __future__ import annotations

from collections.abc import Iterator

from corpora.bad import archives, gguf_files, legacy, pickles, quantised, safetensors_files, sets, values
from corpora.item import Item

# Rules that no small file alone can break, and why.
WITHOUT_A_FILE = {
    "checkpoint.duplicate": "raised where a list of files is opened",
    "checkpoint.shards-alone": "raised where some shards are opened by themselves",
    "directory.ambiguous": "a folder of several checkpoints is validated, each by itself; raised where one is opened",
    "directory.other-format": "raised where a folder is opened; validation looks at every format",
    "gguf.heads": "raised where weights are renamed",
    "gguf.header-too-long": "takes a header of 256 MiB",
    "gguf.memory": "takes a header of 100 MB",
    "gguf.metadata-entries": "takes a header of more than a million keys",
    "gguf.more-findings": "raised where the findings of a file are opened with a limit",
    "index.shards": "takes an index of more shards than any checkpoint has",
    "index.too-long": "takes an index of 256 MiB",
    "names.collision": "raised where weights are renamed",
    "pickle.leaves": "raised where the file is opened: validation makes no names",
    "safetensors.header-too-long": "takes a header of 100 MB",
    "safetensors.metadata-entries": "takes more than a million entries",
    "safetensors.more-findings": "raised where the findings of a file are opened with a limit",
    "torch-legacy.header-too-long": "takes pickles of 256 MiB",
    "torch-legacy.more-findings": "raised where the findings of a file are opened with a limit",
    "torch-zip.directory-too-long": "takes a directory of 256 MiB",
    "torch-zip.entry-too-long": "takes a pickle of 256 MiB",
    "torch-zip.more-findings": "raised where the findings of a file are opened with a limit",
    "torch.depth": "raised where torch.load is asked for the objects of the file",
    "torch.format": "raised where torch.load is asked for a file of another format",
    "torch.key": "raised where torch.load makes the objects of the file",
    "torch.memory": "raised where torch.load makes the objects of the file",
    "torch.no-array": "raised where one tensor is asked for as an array",
    "torch.refused": "raised where torch.load makes the objects of the file",
    "torch.view-place": "raised where torch.load makes the objects of the file",
}


def items() -> Iterator[Item]:
    """All of them."""
    for module in (safetensors_files, gguf_files, archives, legacy, pickles, sets, quantised, values):
        yield from module.items()
