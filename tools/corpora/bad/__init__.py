"""Bad files, none of them an attack: at least one for each rule about weights that a file can break.

What is validated with `content` stands in the group "values". An item says in `named` which rule it is made for.
"""

from __future__ import annotations

from collections.abc import Iterator

from corpora.bad import archives, gguf_files, layouts, legacy, pickles, quantized, safetensors_files, sets, values
from corpora.item import Item

# Rules that no file here breaks as the only one about files, and why.
WITHOUT_A_FILE = {
    "checkpoint.duplicate": "raised where a list of files is opened",
    "checkpoint.shards-alone": "raised where some shards are opened by themselves",
    "directory.ambiguous": "a folder of several checkpoints is validated, each by itself; raised where one is opened",
    "directory.empty": "raised where a folder is opened",
    "directory.other-format": "raised where a folder is opened; validation looks at every format",
    "directory.partial": "the file that is not complete is named itself: file.partial",
    "gguf.fork-type": "no file of this corpus breaks it yet",
    "gguf.header-too-long": "takes a header of 256 MiB",
    "gguf.heads": "raised where weights are renamed",
    "gguf.magic": "such a file is not taken for one of the format: format.unknown or format.zeros",
    "gguf.memory": "takes a header of 100 MB",
    "gguf.metadata-entries": "takes a header of more than a million keys",
    "gguf.split-count": "a file of the set is missing, too: gguf.split-missing",
    "gguf.split-keys": "a file of the set is missing, too: gguf.split-missing",
    "gguf.split-no": "a file of the set is missing, too: gguf.split-missing",
    "gguf.unknown-types": "comes with the dtypes of unknown name themselves",
    "index.shards": "takes an index of more shards than any checkpoint has",
    "index.too-long": "takes an index of 256 MiB",
    "names.collision": "raised where weights are renamed",
    "names.conversion": "raised where weights are converted",
    "pickle.call": "raised where the file is opened: validation says code.broken and others",
    "pickle.dict": "raised where the file is opened: validation says code.broken and others",
    "pickle.frame": "raised where the file is opened: validation says code.broken and others",
    "pickle.global": "raised where the file is opened: validation says code.broken and others",
    "pickle.leaves": "raised where the file is opened: validation makes no names",
    "pickle.limit": "raised where the file is opened: validation says code.broken and others",
    "pickle.memo": "raised where the file is opened: validation says code.broken and others",
    "pickle.memory": "raised where the file is opened: validation says code.broken and others",
    "pickle.number": "raised where the file is opened: validation says code.broken and others",
    "pickle.numpy": "raised where the file is opened: validation says code.broken and others",
    "pickle.opcode": "raised where the file is opened: validation says code.broken and others",
    "pickle.persistent": "raised where the file is opened: validation says code.broken and others",
    "pickle.protocol": "raised where the file is opened: validation says code.broken and others",
    "pickle.set": "raised where the file is opened: validation says code.broken and others",
    "pickle.stack": "raised where the file is opened: validation says code.broken and others",
    "pickle.storage": "raised where the file is opened: validation says code.broken and others",
    "pickle.target": "raised where the file is opened: validation says code.broken and others",
    "pickle.text": "raised where the file is opened: validation says code.broken and others",
    "pickle.trailing-data": "raised where the file is opened: validation says code.broken and others",
    "pickle.truncated": "raised where the file is opened: validation says code.broken and others",
    "pickle.view": "raised where the file is opened: validation says code.broken and others",
    "safetensors.header-empty": "such a file is not taken for one of the format: format.unknown or format.zeros",
    "safetensors.header-start": "such a file is not taken for one of the format: format.unknown or format.zeros",
    "safetensors.header-too-long": "takes a header of 100 MB",
    "safetensors.metadata-entries": "takes more than a million entries",
    "safetensors.too-short": "such a file is not taken for one of the format: format.unknown or format.zeros",
    "torch-legacy.duplicate-key": "the storages are then cut or left over, too",
    "torch-legacy.header-too-long": "takes pickles of 256 MiB",
    "torch-legacy.magic": "such a file is not taken for one of the format: format.unknown or format.zeros",
    "torch-legacy.missing-storage": "the storages are then cut or left over, too",
    "torch-legacy.view": "no file of this corpus breaks it yet",
    "torch-zip.bomb": "raised where the entry is read",
    "torch-zip.crc": "raised where the entry is read",
    "torch-zip.deflate": "raised where the entry is read",
    "torch-zip.directory-too-long": "takes a directory of 256 MiB",
    "torch-zip.entry-too-long": "takes a pickle of 256 MiB",
    "torch-zip.flags": "no file of this corpus breaks it alone: torch-zip.encrypted comes first",
    "torch-zip.local-size": "no file of this corpus breaks it yet",
    "torch-zip.no-pickle": "raised where the file is opened",
    "torch-zip.overlap": "the entries are then not where they should be, too: torch-zip.header, torch-zip.gap",
    "torch-zip.prepended": "such a file is not taken for one of the format: format.unknown or format.zeros",
    "torch-zip.size": "the entries are then not where they should be, too: torch-zip.header, torch-zip.gap",
    "torch-zip.stranger": "raised where the file is opened",
    "torch-zip.torchscript": "raised where the file is opened",
    "torch.depth": "raised where torch.load is asked for the objects of the file",
    "torch.distributed": "raised where the file is opened",
    "torch.format": "raised where torch.load is asked for a file of another format",
    "torch.global": "raised where the file is opened",
    "torch.key": "raised where torch.load makes the objects of the file",
    "torch.memory": "raised where torch.load makes the objects of the file",
    "torch.no-array": "raised where one tensor is asked for as an array",
    "torch.outside-storage": "raised where the file is opened",
    "torch.refused": "raised where torch.load makes the objects of the file",
    "torch.tar": "raised where the file is opened",
    "torch.view-place": "raised where torch.load makes the objects of the file",
}


def items() -> Iterator[Item]:
    """All of them."""
    for module in (safetensors_files, gguf_files, archives, legacy, pickles, sets, quantized, layouts, values):
        yield from module.items()
