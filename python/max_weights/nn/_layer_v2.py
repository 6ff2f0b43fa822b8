"""`LayerV2`: a component of a model that owns weights and other modules, and the base class of `Module`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, cast

from max_weights._core import escape
from max_weights._load_report import suggestions
from max_weights.errors import WeightNotFoundError
from max_weights.graph._weight import Weight
from max_weights.nn._load_file import Conversions, load_file
from max_weights.nn._load_state import load
from max_weights.nn._named_weights import NamedWeights, layer_weights, place, placement, state_dict
from max_weights.nn._running import build_subgraph, compile_module, trace
from max_weights.nn._summary import html, line, print_summary, tree
from max_weights.nn._walk import SHARED, ModuleNode, Walk, contents, modules_in, replaced

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TextIO

    from max_weights._buffer import DLPackArray
    from max_weights._checkpoints import Checkpoint
    from max_weights._devices import DeviceRef
    from max_weights._dtype import DType
    from max_weights._load_report import LoadReport
    from max_weights._weights import WeightsAdapter
    from max_weights._weights_protocol import Weights
    from max_weights.engine._model import InferenceSession, Memory, Model
    from max_weights.graph._graph import Graph
    from max_weights.graph._type import TensorType
    from max_weights.nn._running import InputTypes
    from max_weights.sharding._strategies import ShardingStrategy

__all__ = ["LayerV2"]


class LayerV2(ModuleNode):
    """A component of a model whose `load_state_dict` ignores unknown names and converts values to its weights' dtypes.

    Otherwise, it is like a `Module`, which derives from it.
    """

    @property
    def layer_weights(self) -> dict[str, Weight]:
        """The weights that this module itself owns, by their names in it, without those shared from elsewhere."""
        return layer_weights(self)

    @property
    def sublayers(self) -> dict[str, LayerV2]:
        """The modules directly below, by their part of the path (`up`, `blocks.0`)."""
        return cast("dict[str, LayerV2]", dict(contents(self)[1]))

    def named_modules(self) -> Iterator[tuple[str, ModuleNode]]:
        """Iterate over this module and all modules below it, as (prefix of names, module).

        The order is breadth first, and each module comes once, by its first path. The prefix is the path with a dot at
        the end (`layers.0.`), and is empty for this module itself.

        Example:
            >>> [prefix for prefix, _ in nn.Sequential(nn.Identity()).named_modules()]
            ['', '0.']
        """
        walk = Walk(self)
        return zip([f"{path}." if path else "" for path in walk.paths], walk.modules, strict=True)

    def replace_module(self, name: str, module: LayerV2) -> None:
        """Replace the module at a path, in an attribute, list, tuple or dict.

        Args:
            name: The path, such as `layers.0.mlp`; a dot at the end, as in `named_modules`, makes no difference.
            module: The new module.

        Raises:
            KeyError: there is no such module; the message suggests up to three similar names.
            TypeError: `module` is not a module.

        Example:
            >>> layers = nn.Sequential(nn.Identity())
            >>> layers.replace_module("0", nn.Linear(3, 4, DType.float32, CPU))
        """
        if not isinstance(module, ModuleNode):
            raise TypeError(f"'{escape(name)}' is replaced by a Module, not by a {type(module).__name__}")
        self._pass_placement_on([module])  # its new holder may be a plain list, which passes on nothing
        path = str(name).removesuffix(".")
        if not path or replaced(self, path, module) is None:
            [near] = suggestions(Walk(self).paths[1:], [path])
            raise WeightNotFoundError(
                f"{type(self).__name__} has no module '{escape(name)}' to replace{near}", rule="layer.not-found"
            )

    def set_shared_weight(self, name: str, weight: Weight) -> None:
        """Set an attribute to a weight that another module owns.

        `raw_state_dict`, `state_dict` and `load_state_dict` omit it.

        Args:
            name: The attribute. Its previous value is replaced; weights in other attributes stay, whatever their names.
            weight: The weight.

        Raises:
            TypeError: `weight` is not a Weight.

        Example:
            >>> layer = nn.Linear(3, 4, DType.float32, CPU)
            >>> nn.Identity().set_shared_weight("weight", layer.weight)
        """
        if not isinstance(weight, Weight):
            raise TypeError(f"a shared weight must be a Weight, not a {type(weight).__name__}")
        setattr(self, name, weight)
        vars(self).setdefault(SHARED, {})[name] = weight

    def raw_state_dict(self) -> dict[str, Weight]:
        """Return the `Weight` objects of the model by full names, unchanged.

        You may set their `shape`, `dtype`, `quantization_encoding`, `device` and `align` before a graph is built.

        Raises:
            ValueError: two different weights have the same full name.

        Example:
            >>> layer = nn.Linear(3, 4, DType.float32, CPU)
            >>> layer.raw_state_dict()
            {'weight': Weight(weight, DType.float32, [Dim(4), Dim(3)], cpu:0)}
        """
        return NamedWeights(self).weights

    def state_dict(self, auto_initialize: bool = True) -> dict[str, DLPackArray]:
        """Return the values of the model by full names: the objects that were loaded.

        From then on, the weights are named by their full names.

        Args:
            auto_initialize: Give a weight without a value zeros of its shape, and keep them.

        Raises:
            ValueError: a weight has no value, and `auto_initialize` is false or its shape is symbolic; or two different
                weights have the same full name.

        Example:
            >>> layer = nn.Linear(3, 4, DType.float32, CPU)
            >>> layer.state_dict()["weight"].shape
            (4, 3)
        """
        return state_dict(self, auto_initialize)

    def load_state_dict(
        self,
        state_dict: Mapping[str, object] | Weights,
        *,
        override_quantization_encoding: bool = False,
        weight_alignment: int | None = None,
        strict: bool = True,
        copy_if_misaligned: bool = False,
    ) -> LoadReport | None:
        """Give every weight its value, converted to the weight's dtype: all of them, or none.

        Data in a mapped file is converted when it is first used, everything else now. Packed weights are not converted.
        A warning in the log names what was converted.

        Args:
            state_dict: Values by full names; see `Module`.
            override_quantization_encoding: See `Module`.
            weight_alignment: See `Module`.
            strict: Refuse missing names.
            copy_if_misaligned: See `Module`.

        Returns:
            A report, unless `strict`.

        Raises:
            ValueError: a weight is missing in `state_dict` (unless `strict` is false), or a value does not fit, such as
                fractions for a weight of integers.

        Example:
            >>> layer = nn.Linear(3, 4, DType.float32, CPU)
            >>> layer.load_state_dict({"weight": np.ones((4, 3), "f4")})
        """
        conversions = Conversions()
        report = load(
            self,
            state_dict,
            override_quantization_encoding=override_quantization_encoding,
            weight_alignment=weight_alignment,
            strict=strict,
            copy_if_misaligned=copy_if_misaligned,
            convert=conversions.convert,
            ignore_unexpected=True,
        )
        conversions.warn(type(self).__name__)
        return None if strict else report

    def load(
        self,
        checkpoint: Checkpoint,
        dtype: DType | str | None = None,
        rename: Callable[[str], str | None] | Mapping[str, str] | str | None = None,
        *,
        adapter: WeightsAdapter | None = None,
        strict: bool = True,
        copy_if_misaligned: bool = True,
        override_quantization_encoding: bool = False,
    ) -> LoadReport:
        """Load a checkpoint: open it, rename, convert, and give every weight its value, or none.

        Values stay views of the mapped file. Nothing is read before it is used, unless it is not aligned in the file.

        Args:
            checkpoint: A tree, or anything that `load_weights` opens, which stays open for the values.
            dtype: Convert floating-point values to this dtype, and decode packed ones, when they are first used.
                Integers and bools stay unchanged.
            rename: From the names in the file to those of the model: a function (returning `None` drops the weight), or
                `hf` for the Hugging Face names of a GGUF file. Or a dict: a key that ends with a dot stands for every
                name that starts with it; other names stay.
            adapter: Called with a dict of (renamed) names to weights of the checkpoint; returns the state dict.
            strict: Refuse missing and unexpected names.
            copy_if_misaligned: Copy values that are not aligned in the file.
            override_quantization_encoding: Use the encodings of the file if they differ from those declared; the files
                of llama.cpp mix several.

        Returns:
            What was loaded, and what was missing or unexpected.

        Raises:
            MissingFileError: there is no such path.
            ValueError: the file is damaged, or does not fit the model.

        Example:
            >>> layer = nn.Linear(8, 16, DType.float32, CPU, name="lm_head")
            >>> report = layer.load("model.safetensors", strict=False)
        """
        return load_file(
            self, checkpoint, dtype, rename, adapter, strict, copy_if_misaligned, override_quantization_encoding
        )

    def to(self, *devices: DeviceRef | str, sharding_strategy: ShardingStrategy | None = None) -> None:
        """Set the device of every weight below, and how it is split.

        A module that is attached later, to this one or to one below, gets the same placement, unless it was given one
        itself.

        Args:
            *devices: One device, or several that the weights are split over; `device` of each weight is the first.
            sharding_strategy: How the weights are split; needed for several devices.

        Raises:
            ValueError: no device, several without a strategy, or another number than the strategy's.

        Example:
            >>> layer = nn.Linear(3, 4, DType.float32, CPU)
            >>> layer.to("gpu:0")
        """
        place(self, devices, sharding_strategy)

    def __setattr__(self, name: str, value: object) -> None:
        self._pass_placement_on([value])
        super().__setattr__(name, value)

    def _pass_placement_on(self, values: Iterable[object]) -> None:
        """Give this module's placement to the modules among the values that are about to be attached."""
        target = placement(self)
        if target is None:
            return
        for _, module in modules_in(values):
            if placement(module) is None:
                cast("LayerV2", module).to(*target.devices, sharding_strategy=target.strategy)

    def build_subgraph(
        self,
        name: str,
        input_types: InputTypes | None = None,
        weight_prefix: str = "",
        *,
        inputs: InputTypes | None = None,
    ) -> Graph:
        """Build this module's computation as a subgraph of the current graph, to be called by `ops.call`.

        Args:
            name: The name, unique in the graph around it.
            input_types: For each argument of the module its type, or a value of that type; for an argument that is a
                list of values, a list of them.
            weight_prefix: The prefix of the names of weights that differ in each call, such as "layers.0.". Names are
                complete once `state_dict` or `load_state_dict` of the whole model has been called.
            inputs: The name of `input_types` in newer versions of MAX.

        Returns:
            The subgraph.

        Raises:
            TypeError: `input_types` and `inputs` are both given, or neither is.
            GraphError: there is no current graph, or it already has a subgraph of this name (a ValueError).

        Example:
            >>> layer = nn.Linear(3, 4, DType.float32, CPU)
            >>> ops.call(layer.build_subgraph("up", [x.type]), x)[0].shape
            [Dim(2), Dim(4)]
        """
        alternatives = [types for types in (input_types, inputs) if types is not None]
        if len(alternatives) != 1:
            raise TypeError("build_subgraph: give either input_types or `inputs`, which is another name for it")
        return build_subgraph(self, name, alternatives[0], weight_prefix)

    def trace(self, *input_types: TensorType, name: str | None = None) -> Graph:
        """Return the graph of one call.

        Args:
            *input_types: The type of each argument.
            name: The name of the graph; default: that of the class.

        Raises:
            GraphError: an operation of the module does not fit its operands (a ValueError).

        Example:
            >>> layer = nn.Linear(3, 4, DType.float32, CPU)
            >>> layer.trace(x.type).output_types
            [TensorType(dtype=float32, shape=[Dim(2), Dim(4)], device=cpu:0)]
        """
        return trace(self, input_types, name)

    def compile(
        self,
        *input_types: TensorType,
        session: InferenceSession | None = None,
        weights: Mapping[str, object] | None = None,
        name: str | None = None,
        memory: Memory = "shared",
    ) -> Model:
        """Compile the module to a model that is ready to run.

        Args:
            *input_types: The type of each argument.
            session: The session to compile in; default: a new one.
            weights: The values of the weights by their names; default: `state_dict()`.
            name: The name of the graph; default: that of the class.
            memory: See `InferenceSession.load`.

        Returns:
            The model.

        Raises:
            GraphError: a weight has no value, or an operation cannot be run (a ValueError).
            ImportError: ONNX Runtime is not installed.

        Example:
            >>> layer = nn.Linear(3, 4, DType.float32, CPU)
            >>> layer.compile(x.type).execute(np.ones((2, 3), "f4"))[0].shape
            (2, 4)
        """
        values = self.state_dict() if weights is None else weights  # which gives the weights their full names
        return compile_module(self, input_types, session, values, name, memory)

    def __repr__(self) -> str:
        return line(self)

    def __str__(self) -> str:
        return tree(self)

    def _repr_html_(self) -> str:
        return html(self)

    def summary(self, depth: int | None = None, file: TextIO | None = None) -> None:
        """Print a table of modules: parameters, bytes, dtypes, devices, and how much of it has values.

        Args:
            depth: Show modules of at most this many components; default: all. Deeper ones count in those above.
            file: Where to print; default: standard output.

        Raises:
            ValueError: `depth` is not 0 or more.

        Example:
            >>> layer = nn.Linear(3, 4, DType.float32, CPU)
            >>> layer.summary()
            module  type    parameters   MB  dtype    device  loaded
            (all)   Linear          12  0.0  float32  cpu:0      0/1
        """
        print_summary(self, depth, file)
