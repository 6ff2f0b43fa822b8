"""The codecs of other libraries' deltas, from the descriptions of their formats, in NumPy, zstandard and xxhash.

`xor` and `overwrite` are the codecs of slime, miles, SkyRL and ModelExpress: Zstandard frames, and an XXH3 of the new
bytes that verifies the result. The codec of TRL, `sparse`, has gaps between positions, and values. Each encodes both
versions of all tensors, given as rows of bytes, into a safetensors file, and applies such a file in place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    Tensors = dict[str, np.ndarray]

LEVEL = 1


def _frames(name: str, pack: Callable[[np.ndarray, np.ndarray], bytes]) -> Callable[[Tensors, Tensors, Path], Path]:
    def encode(base: Tensors, new: Tensors, folder: Path) -> Path:
        import numpy as np
        import xxhash
        import zstandard
        from safetensors.numpy import save_file

        compressor = zstandard.ZstdCompressor(level=LEVEL)
        frames, sums = {}, {}
        for tensor, before in base.items():
            after = new[tensor]
            frames[tensor] = np.frombuffer(compressor.compress(pack(before, after)), np.uint8)
            sums[tensor] = xxhash.xxh3_128_hexdigest(after.data)
        path = folder / f"{name}-of-others.safetensors"
        save_file(frames, path, metadata=sums)
        return path

    return encode


def _apply_frames(unpack: Callable[[np.ndarray, bytes], None]) -> Callable[[Tensors, Path], None]:
    def apply(tensors: Tensors, path: Path) -> None:
        import xxhash
        import zstandard
        from safetensors import safe_open

        decompressor = zstandard.ZstdDecompressor()
        with safe_open(path, framework="np") as file:
            sums = file.metadata()
            for name in file.keys():  # noqa: SIM118
                place = tensors[name]
                unpack(place, decompressor.decompress(file.get_tensor(name)))
                if xxhash.xxh3_128_hexdigest(place.data) != sums[name]:
                    raise ValueError(name)

    return apply


def _pack_xor(before: np.ndarray, after: np.ndarray) -> bytes:
    raw: bytes = (before ^ after).tobytes()
    return raw


def _unpack_xor(place: np.ndarray, raw: bytes) -> None:
    import numpy as np

    np.bitwise_xor(place, np.frombuffer(raw, np.uint8), out=place)


def _pack_overwrite(before: np.ndarray, after: np.ndarray) -> bytes:
    import numpy as np

    places = np.flatnonzero(before != after).astype("<u4")
    raw: bytes = np.array([places.size], "<u4").tobytes() + places.tobytes() + after[places].tobytes()
    return raw


def _unpack_overwrite(place: np.ndarray, raw: bytes) -> None:
    import numpy as np

    count = int(np.frombuffer(raw, "<u4", 1)[0])
    place[np.frombuffer(raw, "<u4", count, 4)] = np.frombuffer(raw, np.uint8, count, 4 + 4 * count)


def _encode_sparse(base: Tensors, new: Tensors, folder: Path) -> Path:
    import numpy as np
    from safetensors.numpy import save_file

    tensors: Tensors = {}
    for name, before in base.items():
        old, after = before.view(np.uint16), new[name].view(np.uint16)
        places = np.flatnonzero(old != after)
        gaps = np.diff(places, prepend=-1) - 1
        tensors[f"{name}.idx"] = gaps.astype(np.uint16 if gaps.max(initial=0) <= 0xFFFF else np.uint32)
        tensors[f"{name}.val"] = after[places]
    metadata = {"format": "sparse_weight_patch", "version": "1", "model_version": "1", "encoding": "gap_delta"}
    path = folder / "sparse-of-others.safetensors"
    save_file(tensors, path, metadata=metadata | {"sparse": "True"})
    return path


def _apply_sparse(tensors: Tensors, path: Path) -> None:
    import numpy as np
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        for key in file.keys():  # noqa: SIM118
            if not key.endswith(".idx"):
                continue
            name = key.removesuffix(".idx")
            places = np.cumsum(file.get_tensor(key).astype(np.int64) + 1) - 1
            tensors[name].view(np.uint16)[places] = file.get_tensor(f"{name}.val")


CODECS: dict[str, tuple[Callable[[Tensors, Tensors, Path], Path], Callable[[Tensors, Path], None]]] = {
    "xor": (_frames("xor", _pack_xor), _apply_frames(_unpack_xor)),
    "overwrite": (_frames("overwrite", _pack_overwrite), _apply_frames(_unpack_overwrite)),
    "sparse": (_encode_sparse, _apply_sparse),
}
"""By dialect: what encodes, and what applies."""
