"""Names and layouts of other libraries: experts packed or separate, projections fused or split, as rules over names.

`max_weights.renamed(weights, "transformers5")` applies the rules for a model's architecture; `conversion_rules` returns
them, and custom rules are lists of `ConversionRule`.
"""

from max_weights.conversion._rules import (
    Add,
    Concatenate,
    ConversionRule,
    Deinterleave,
    Interleave,
    Split,
    Stack,
    Transpose,
    Unstack,
)
from max_weights.conversion._view import conversion_rules

__all__ = [
    "Add",
    "Concatenate",
    "ConversionRule",
    "Deinterleave",
    "Interleave",
    "Split",
    "Stack",
    "Transpose",
    "Unstack",
    "conversion_rules",
]
