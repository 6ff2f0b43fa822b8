"""The entry point of group `torch.backends`, which torch calls at the end of its import in every process."""

from __future__ import annotations

import os

from max_weights._switches import is_on

__all__ = ["autoload"]

_PATCH, _VERIFY = "MAX_WEIGHTS_PATCH", "MAX_WEIGHTS_VERIFY"


def autoload() -> None:
    """Patch, if `MAX_WEIGHTS_PATCH=1` or `MAX_WEIGHTS_VERIFY=1`: verification is a part of the patch.

    Problems are warnings, because an error would make the import of torch fail.
    """
    if _PATCH not in os.environ and _VERIFY not in os.environ:
        return
    try:
        verifies = is_on(_VERIFY)
        if is_on(_PATCH, default=verifies):
            from max_weights._dropin.patching import patch

            patch()
        elif verifies:
            off = f"{_PATCH}={os.environ[_PATCH]}"
            _warn("%s has no effect: %s turns off the patch, which compares what is loaded", _VERIFY, off)
    except Exception as error:
        _warn("the program is not patched: %r", error)


def _warn(message: str, *arguments: object) -> None:
    import logging

    logging.getLogger("max_weights.dropin").warning(message, *arguments)
