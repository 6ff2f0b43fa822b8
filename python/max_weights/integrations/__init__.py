"""Plug-ins for the extension points of other libraries: torch's distributed checkpoints, Lightning, vLLM and sglang.

Each is imported when it is used, with its library.
"""

from max_weights._facade import facade as _facade
from max_weights._unsupported import unsupported_names as _unsupported_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from max_weights.integrations._distributed import WeightsReader, WeightsWriter
    from max_weights.integrations._lightning import WeightsCheckpointIO
    from max_weights.integrations._sglang import register_sglang
    from max_weights.integrations._vllm import register_vllm
del TYPE_CHECKING

# Written by tools/surface.py from the imports above: run it after each change of them.
# fmt: off
__all__ = ["WeightsCheckpointIO", "WeightsReader", "WeightsWriter", "register_sglang", "register_vllm"]
_NAMES = {
    "integrations._distributed": "WeightsReader WeightsWriter",
    "integrations._lightning": "WeightsCheckpointIO",
    "integrations._sglang": "register_sglang",
    "integrations._vllm": "register_vllm",
}
# fmt: on
__getattr__, __dir__ = _facade(__name__, _NAMES, _unsupported_names(__name__))
