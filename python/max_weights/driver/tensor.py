"""`DLPackArray` under the dotted path of MAX."""

from max_weights._buffer import DLPackArray

__all__ = ["DLPackArray"]
