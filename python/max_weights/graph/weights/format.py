"""`WeightsFormat` under the dotted path of MAX."""

from max_weights._weights import WeightsFormat, weights_format

__all__ = ["WeightsFormat", "weights_format"]
