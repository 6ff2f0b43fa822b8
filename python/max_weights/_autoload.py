"""The entry point of group `torch.backends`, which torch calls at the end of its import in every process."""

from __future__ import annotations

import os

__all__ = ["autoload"]


def autoload() -> None:
    """Patch, if `MAX_WEIGHTS_PATCH=1` asks for it. No error is raised, as that would make the import of torch fail."""
    if os.environ.get("MAX_WEIGHTS_PATCH") != "1":
        return
    try:
        from max_weights._dropin.patching import patch

        patch()
    except Exception as error:
        import logging

        logging.getLogger("max_weights.dropin").warning("the program is not patched: %r", error)
