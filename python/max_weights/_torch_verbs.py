"""`load_file`, `load_into` and `verify_loaded` of `max_weights.torch`, which is imported when they are called."""

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["load_file", "load_into", "verify_loaded"]

if TYPE_CHECKING:
    from max_weights.torch import load_file, load_into, verify_loaded
else:

    def load_file(checkpoint, device="cpu", **options):
        """Load the tensors of a checkpoint for torch: `max_weights.torch.load_file`, whose help has all options.

        Args:
            checkpoint: What `load_weights` takes.
            device: Where the tensors go, such as "cuda:1".
            **options: Those of `max_weights.torch.load_file`.

        Returns:
            {name: tensor of torch}, in file order.

        Raises:
            FormatError: The file is damaged.
            ModuleNotFoundError: torch is not installed.

        Example:
            >>> max_weights.load_file("model.safetensors")["model.norm.weight"].shape
            torch.Size([8])
        """
        return _torch("load_file")(checkpoint, device, **options)

    def load_into(module, checkpoint, **options):
        """Fill a module of torch from a checkpoint: `max_weights.torch.load_into`, whose help has all options.

        Args:
            module: The module; it may be on the meta device or distributed.
            checkpoint: Anything that `load_weights` takes, or an open tree.
            **options: Those of `max_weights.torch.load_into`.

        Returns:
            The `max_weights.types.LoadReport` of what was loaded.

        Raises:
            ArgumentError: The checkpoint does not fit the module; the message lists every mismatch.
            ModuleNotFoundError: torch is not installed.

        Example:
            >>> max_weights.load_into(model, "model.safetensors").ok
            True
        """
        return _torch("load_into")(module, checkpoint, **options)

    def verify_loaded(module, checkpoint, **options):
        """Compare a module of torch with a checkpoint: `max_weights.torch.verify_loaded`, whose help has all options.

        Args:
            module: The module, after loading.
            checkpoint: Anything that `load_weights` takes, an open tree, or a fingerprint.
            **options: Those of `max_weights.torch.verify_loaded`.

        Returns:
            A result that is true if the module has the values of the checkpoint.

        Raises:
            ArgumentError: The module has tensors on the meta device.
            ModuleNotFoundError: torch is not installed.

        Example:
            >>> report = max_weights.load_into(model, "model.safetensors")
            >>> assert max_weights.verify_loaded(model, "model.safetensors")
        """
        return _torch("verify_loaded")(module, checkpoint, **options)


def _torch(verb: str) -> Any:
    """Return a function of `max_weights.torch`."""
    try:
        return getattr(importlib.import_module("max_weights.torch"), verb)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        message = f"max_weights.{verb} needs torch, which is not installed: pip install 'max-weights[torch]'"
        raise ModuleNotFoundError(message, name="torch") from error
