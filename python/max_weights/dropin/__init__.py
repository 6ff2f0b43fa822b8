"""The drop-in: loading functions of other libraries, replaced by ours in a running program.

Nothing of those libraries is imported here: what is not there yet is replaced when the program imports it.
"""

from max_weights.dropin.calls import Calls
from max_weights.dropin.patching import patch, patched, unpatch

__all__ = ["Calls", "patch", "patched", "unpatch"]
