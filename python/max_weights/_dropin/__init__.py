"""The drop-in: loading functions of other libraries, replaced by ours in a running program.

None of these libraries is imported here: functions of a library that is not yet imported are replaced when the program
imports it.
"""

from max_weights._dropin.calls import Calls
from max_weights._dropin.patching import patch, patched, unpatch

__all__ = ["Calls", "patch", "patched", "unpatch"]
