"""`safetensors.numpy` on top of this package: the file of the installed package, run over our functions.

Improvements over the package are below. Without it there are `load_file`, `load`, `save_file` and `save`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from max_weights._dtype import DType
from max_weights.safetensors._functions import functions, run_package_file
from max_weights.safetensors._in_memory import deserialize

if TYPE_CHECKING:
    from safetensors import TensorSpec
    from safetensors.numpy import load as load
    from safetensors.numpy import load_file as load_file
    from safetensors.numpy import save as save
    from safetensors.numpy import save_file as save_file
    from typing_extensions import Buffer as Bytes

    from max_weights._buffer import Array

__all__ = ["load", "load_file", "save", "save_file"]

_package = run_package_file("numpy", globals())

if _package:

    def _getdtype(dtype_str: str) -> np.dtype[np.generic]:
        """Return the NumPy dtype of a name in safetensors files. KeyError if NumPy has none.

        Programs that have imported ml_dtypes get its dtypes for bfloat16 and the floats of 8 bits.
        """
        if dtype_str.startswith(("BF16", "F8_")) and "ml_dtypes" in sys.modules:
            return DType(dtype_str).to_numpy()
        dtype: np.dtype[np.generic] = _package["_getdtype"](dtype_str)
        return dtype

    def _flatten(tensor_dict: dict[str, Array], keep_alive_buffer: list[object]) -> dict[str, TensorSpec]:
        """Return the argument for `serialize`; the owner of the memory is added to `keep_alive_buffer`.

        Arrays with gaps or in Fortran order are copied; the package saves the bytes after their first element.
        """
        packed = {name: array if array.flags.c_contiguous else array.copy("C") for name, array in tensor_dict.items()}
        keep_alive_buffer.append(packed)
        specs: dict[str, TensorSpec] = _package["_flatten"](packed, keep_alive_buffer)
        return specs

else:

    def _loaded(data: Bytes) -> dict[str, Array]:
        return {
            name: np.frombuffer(view["data"], DType(view["dtype"]).to_numpy()).reshape(view["shape"])
            for name, view in deserialize(data)
        }

    def _native(tensor_dict: dict[str, Array]) -> dict[str, Array]:
        return {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in tensor_dict.items()}

    globals().update(functions("np", _loaded, _native))
