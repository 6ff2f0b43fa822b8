"""The Python files of the installed safetensors package, run over the functions of this package.

What those files do (which tensors share memory, what is refused, which name of a tied tensor is saved) they do by four
functions of the package's compiled part. Here they get ours in their places.
"""

from __future__ import annotations

from importlib.abc import InspectLoader
from typing import Any

from max_weights.safetensors._deserializing import deserialize
from max_weights.safetensors._installed import found_extension, spec_of
from max_weights.safetensors._open_file import safe_open
from max_weights.safetensors._serializing import serialize, serialize_file

__all__ = ["run_package_file"]

_OURS = {
    "deserialize": deserialize,
    "safe_open": safe_open,
    "serialize": serialize,
    "serialize_file": serialize_file,
}


def run_package_file(name: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Run `safetensors/<name>.py` of the installed package in a module of ours, which gets its names.

    What the module defines afterwards under one of these names is what the package's functions call, too.

    Args:
        name: Such as "torch".
        namespace: The `globals()` of the module.

    Returns:
        The names of the package and what it defines; empty if it is not installed, or older than 0.8, whose files hand
        over copies of the tensors instead of their addresses.
    """
    spec = spec_of(f"safetensors.{name}")
    if spec is None or not isinstance(spec.loader, InspectLoader) or not hasattr(found_extension(), "TensorSpec"):
        return {}
    code = spec.loader.get_code(spec.name)
    if code is None:
        return {}
    exec(code, namespace)
    namespace.update({name: ours for name, ours in _OURS.items() if name in namespace})
    return dict(namespace)
