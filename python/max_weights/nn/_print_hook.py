"""`PrintHook`: prints what layers take and return when a graph is run."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable

from max_weights.graph._value import TensorValue
from max_weights.nn._base_layer import Layer, add_layer_hook, remove_layer_hook
from max_weights.nn._walk import ModuleNode, Walk

__all__ = ["PrintHook"]

_log = logging.getLogger("max_weights.nn")


class PrintHook:
    """A hook that prints the inputs and outputs of each layer when the graph is run.

    It is added when it is created, and records `print` operations in the graphs that are built
    from then on. The labels are those of MAX: `model.up-input_0`, `model.up-input_mask`, `model.up-output`,
    `model.up-output_1` for one of several. A layer without a name is labelled by its class.

    Args:
        export_path: Nothing is written: tensors are only printed, and a path gives a warning.
        filter: The names of the layers to print; default: all.
    """

    def __init__(self, export_path: str | None = None, filter: Iterable[str] | None = None) -> None:
        if export_path is not None:
            _log.warning("PrintHook does not write files, so nothing goes to %s: tensors are printed", export_path)
        self.filter = None if filter is None else frozenset(filter)
        self.labels: list[str] = []
        """The labels recorded since the last `step`."""
        self._step = 0
        # The layer is kept, because the id of one that is gone may be given to another.
        self._names: dict[int, tuple[Layer, str]] = {}
        add_layer_hook(self)

    def name_layers(self, model: ModuleNode) -> None:
        """Name a model and all layers below it by their paths: `model`, `model.layers.0`.

        Args:
            model: The model.

        Raises:
            TypeError: it has no attributes, so it is no module.

        Example:
            >>> hook = nn.PrintHook()
            >>> hook.name_layers(nn.Sequential(nn.Identity()))
            >>> hook.remove()
        """
        tree = Walk(model)
        for path, layer in zip(tree.paths, tree.modules, strict=True):
            self.add_layer(layer, f"model.{path}" if path else "model")

    def add_layer(self, layer: Layer, name: str) -> None:
        """Name one layer.

        Args:
            layer: The layer.
            name: What its tensors are printed as.

        Raises:
            Nothing: any layer can have any name.

        Example:
            >>> hook = nn.PrintHook()
            >>> hook.add_layer(nn.Identity(), "same")
            >>> hook.remove()
        """
        self._names[id(layer)] = layer, name

    def __call__(self, layer: Layer, args: tuple[object, ...], kwargs: dict[str, object], outputs: object) -> None:
        """Record print operations for one call's tensors."""
        name = self._name(layer)
        if self.filter is not None and name not in self.filter:
            return
        for key, value in (*enumerate(args), *kwargs.items()):
            self.print_value(f"{name}-input_{key}", value)
        if isinstance(outputs, (list, tuple)):
            for index, value in enumerate(outputs):
                self.print_value(f"{name}-output_{index}", value)
        else:
            self.print_value(f"{name}-output", outputs)

    def _name(self, layer: Layer) -> str:
        if id(layer) not in self._names:
            names = {name for _, name in self._names.values()}
            kind = type(layer).__name__
            numbered = itertools.chain([kind], (f"{kind}{number}" for number in itertools.count(2)))
            self.add_layer(layer, next(name for name in numbered if name not in names))
        return self._names[id(layer)][1]

    def print_value(self, name: str, value: object) -> bool:
        """Print a value under a label; return False if it is not a tensor of a graph.

        Args:
            name: The label.
            value: A tensor of a graph; anything else is passed over.

        Returns:
            Whether it is a tensor of a graph.

        Raises:
            GraphError: there is no graph (a ValueError).

        Example:
            >>> hook = nn.PrintHook()
            >>> hook.print_value("x", x)
            True
            >>> hook.remove()
        """
        if not isinstance(value, TensorValue):
            return False
        value.print(name)
        self.labels.append(name)
        return True

    def step(self) -> None:
        """Restart the count from zero, as for the next graph.

        Example:
            >>> hook = nn.PrintHook()
            >>> hook.step()
            >>> hook.remove()
        """
        self._step += 1
        self.labels.clear()

    def summarize(self) -> None:
        """Print the number of tensors.

        Example:
            >>> hook = nn.PrintHook()
            >>> hook.summarize()
            Printed 0 tensors for step 0.
            >>> hook.remove()
        """
        print(f"Printed {len(self.labels)} tensors for step {self._step}.")

    def remove(self) -> None:
        """Stop printing.

        Example:
            >>> nn.PrintHook().remove()
        """
        remove_layer_hook(self)
