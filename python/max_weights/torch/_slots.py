"""The slots of a torch module to fill: its parameters and buffers, each once, with all of its names."""

from __future__ import annotations

import copy
import functools
import itertools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from max_weights._core import escape
from max_weights._dtype import DType
from max_weights._transaction import Destination, Transaction, is_distributed, known_dtype, local, overlaps_itself

if TYPE_CHECKING:
    from max_weights._core import WeightInfo
    from max_weights.sharding._by_name import ShardBox

__all__ = [
    "CODES",
    "ParameterSlot",
    "Place",
    "SlotFill",
    "Slots",
    "all_slots",
    "can_initialize",
    "declared_ties",
    "dtype_of_decoded",
    "has_distributed",
    "initialize_missing",
    "is_distributed",
    "keep_module",
    "keep_values",
    "local",
    "run_hooks",
]


# The dtypes of codes of quantized weights.
CODES = frozenset(
    {
        DType.int8,
        DType.uint8,
        DType.int32,
        DType.float8_e4m3fn,
        DType.float8_e4m3fnuz,
        DType.float8_e5m2,
        DType.float8_e5m2fnuz,
    }
)


def dtype_of_decoded(slots: Mapping[str, ParameterSlot], weight: str | None, packed: str | None) -> DType | None:
    """Return what a module has a quantized weight as; `None` where it has its tensors in the stored form."""
    if weight is None:
        return None if any(known_dtype(slot.tensor) in CODES for slot in slots.values()) else DType.float32
    slot = slots.get(weight)
    if slot is None or (packed != weight and packed in slots):
        return None
    dtype = known_dtype(slot.tensor)
    return dtype if dtype is not None and dtype.is_float() and dtype not in CODES else None


@dataclass(frozen=True)
class Place:
    """A module and the name under which it has a tensor."""

    owner: nn.Module
    attribute: str
    name: str
    saved: bool
    """False for a buffer that is registered with `persistent=False`."""

    def put(self, tensor: torch.Tensor) -> None:
        """Set the tensor, unless it is set already."""
        if getattr(self.owner, self.attribute) is not tensor:
            setattr(self.owner, self.attribute, tensor)


@dataclass
class ParameterSlot:
    """One parameter or buffer, with all places that have it."""

    tensor: torch.Tensor
    places: list[Place] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The first name."""
        return next((place.name for place in self.places if place.saved), self.places[0].name)

    @property
    def saved(self) -> bool:
        """Whether it is part of the state dict."""
        return any(place.saved for place in self.places)

    def refusal(self) -> str | None:
        """Return why it cannot be filled; `None` if it can."""
        tensor = self.tensor
        if is_distributed(tensor):
            from max_weights._ranks.placements import refusal

            return refusal(tensor)
        if _is_wrapper(tensor):
            return (
                f"it is a {type(tensor).__name__}, which stores its elements in its own way; load first, then "
                "distribute or quantize"
            )
        if tensor.layout is not torch.strided:
            return f"it is sparse ({tensor.layout})"
        if tensor.is_quantized:
            return "it is a quantized tensor; load first, then quantize"
        if not tensor.is_meta and overlaps_itself(tensor):
            return "several of its elements share memory, as after expand()"
        return None

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of that shape fits. `(1,)` fits `()`, because old files have that; torch takes it, too."""
        own = tuple(self.tensor.shape)
        return own == shape or (own, shape) == ((), (1,))

    def materialize(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the replacement for a tensor without memory: of the same kind, over this memory."""
        old = self.tensor
        tensor = tensor.reshape(old.shape)
        if not isinstance(old, nn.Parameter):
            return tensor
        can_have = tensor.is_floating_point() or tensor.is_complex()
        new: torch.Tensor = torch.Tensor._make_subclass(type(old), tensor, old.requires_grad and can_have)
        vars(new).update(vars(old))
        return new


@dataclass
class SlotFill:
    """A slot to fill, with its values in the checkpoint."""

    slot: ParameterSlot
    name: str
    info: WeightInfo
    dtype: DType | None
    """The dtype that the elements are converted to; `None` for the one in the file."""
    out: torch.Tensor | None = None
    """The memory of the module that they are written to by the engine."""
    cut: ShardBox | None = None
    """This rank's region of the weight."""
    shape: list[int] = field(default_factory=list)
    """The shape of the region in the file."""
    size: int = 0
    """Bytes of the part in the file."""
    is_new: bool = False
    """Whether it had no memory before."""

    @property
    def memory(self) -> Destination:
        """The destination of the values."""
        return Destination(self.slot.tensor)

    def give_memory(self) -> None:
        """Replace a tensor on the meta device by one with memory; for a distributed one, on the device of its mesh."""
        old, dtype = self.slot.tensor, self.info.dtype if self.dtype is None else self.dtype
        new = _with_memory(old, dtype.to_torch() if isinstance(dtype, DType) else getattr(torch, dtype))
        if isinstance(old, nn.Parameter):
            new = nn.Parameter(new, old.requires_grad and (new.is_floating_point() or new.is_complex()))
            vars(new).update(vars(old))
        self.slot.tensor, self.is_new = new, True


def _with_memory(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not is_distributed(tensor):
        return torch.empty(tensor.shape, dtype=dtype, device="cpu")
    kind = tensor.device_mesh.device_type
    device = torch.device(kind) if kind == "cpu" else torch.device(kind, torch.get_device_module(kind).current_device())
    part = torch.empty(tensor.to_local().shape, dtype=dtype, device=device)
    made: torch.Tensor = type(tensor).from_local(
        part, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
    return made


class Slots:
    """The slots of a module, in its order, and the modules in it that have their own loader."""

    def __init__(self, module: nn.Module) -> None:
        self.by_name: dict[str, ParameterSlot] = {}
        self.custom_loaders: dict[str, nn.Module] = {}
        """By prefix: modules that define a `_load_from_state_dict` or hooks, and everything below them."""
        by_memory: dict[object, ParameterSlot] = {}
        for prefix, owner in _walk(module, self.custom_loaders):
            for place, tensor in places_of(prefix, owner):
                slot = by_memory.setdefault(_memory(tensor), ParameterSlot(tensor))
                slot.places.append(place)
                self.by_name[place.name] = slot
        self._aliases = _declared_ties(module)

    def __iter__(self) -> Iterator[ParameterSlot]:
        return iter({id(slot): slot for slot in self.by_name.values()}.values())

    def destroyed(self) -> list[str]:
        """Return what is wrong with modules with their own loader. On them, `assign=True` would put plain tensors in
        place of tensors on the meta device that store their elements in their own way. Distributed ones would get the
        whole tensor in place of a part.
        """
        refused = []
        for prefix, owner in self.custom_loaders.items():
            for name, tensor in (*owner.named_parameters(), *owner.named_buffers()):
                if is_distributed(tensor):
                    why = "it is distributed, and its module loads itself: load that one first, then distribute it"
                    refused.append(f"'{escape(prefix + name)}': {why}")
                elif tensor.is_meta and _is_wrapper(tensor):
                    refused.append(f"'{escape(prefix + name)}': {ParameterSlot(tensor).refusal()}")
        return refused

    def tie(self, names: set[str]) -> None:
        """Merge two slots that the model declares to be tied, if only one of them is given."""
        for name, other in self._aliases.items():
            one, two = self.by_name.get(name), self.by_name.get(other)
            if one is None or two is None or one is two or one.tensor.shape != two.tensor.shape:
                continue
            one_in_file, other_in_file = (any(place.name in names for place in slot.places) for slot in (one, two))
            if one_in_file == other_in_file:
                continue
            target, source = (one, two) if other_in_file else (two, one)
            source.places += target.places
            for place in target.places:
                self.by_name[place.name] = source


def all_slots(module: nn.Module) -> list[ParameterSlot]:
    """Return the slots of a module and of everything below it, also of modules that load themselves."""
    by_memory: dict[object, ParameterSlot] = {}
    for prefix, owner in _everything(module):
        for place, tensor in places_of(prefix, owner):
            by_memory.setdefault(_memory(tensor), ParameterSlot(tensor)).places.append(place)
    return list(by_memory.values())


def declared_ties(module: nn.Module) -> dict[str, list[str]]:
    """Return, for each name that a model declares to be tied, the others that should be the same."""
    groups: dict[str, set[str]] = {}
    for name, other in _declared_ties(module).items():
        group = groups.get(name, {name}) | groups.get(other, {other})
        groups.update(dict.fromkeys(group, group))
    return {name: sorted(group - {name}) for name, group in groups.items()}


def _everything(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Return the modules by name; a module with two names is listed under both."""
    yield prefix, module
    for name, child in module._modules.items():
        if child is not None:
            yield from _everything(child, f"{prefix}{name}.")


def _walk(module: nn.Module, custom_loaders: dict[str, nn.Module], prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    if _loads_itself(module):
        custom_loaders[prefix] = module
        return
    yield prefix, module
    for name, child in module._modules.items():
        if child is not None:
            yield from _walk(child, custom_loaders, f"{prefix}{name}.")


def places_of(prefix: str, owner: nn.Module) -> Iterator[tuple[Place, torch.Tensor]]:
    for name, parameter in owner._parameters.items():
        if parameter is not None:
            yield Place(owner, name, prefix + name, True), parameter
    for name, buffer in owner._buffers.items():
        if buffer is not None:
            yield Place(owner, name, prefix + name, name not in owner._non_persistent_buffers_set), buffer


def _memory(tensor: torch.Tensor) -> object:
    """Return a key that is equal for two tensors that cover the same memory."""
    plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
    if tensor.is_meta or not plain or not tensor.numel():
        return id(tensor)
    flips = tensor.is_conj(), tensor.is_neg()
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device, flips


def _loads_itself(module: nn.Module) -> bool:
    kind = type(module)
    own = ("_load_from_state_dict", "load_state_dict", "set_extra_state")
    hooks = (*module._load_state_dict_pre_hooks.values(), *module._load_state_dict_post_hooks.values())
    return any(getattr(kind, name) is not getattr(nn.Module, name) for name in own) or not all(map(_is_of_fsdp, hooks))


def _is_of_fsdp(hook: Any) -> bool:
    """Whether it is a hook of FSDP2, which gathers no parameters, but has to learn that they were replaced."""
    function = getattr(hook, "hook", hook)
    return getattr(function, "__module__", "").startswith("torch.distributed.fsdp._fully_shard")


def run_hooks(module: nn.Module, *, before: bool) -> None:
    """Run the hooks of FSDP2 before parameters are filled (reshard), or after it (register the replaced ones)."""
    for owner in module.modules():
        hooks = owner._load_state_dict_pre_hooks if before else owner._load_state_dict_post_hooks
        for hook in list(hooks.values()):
            if _is_of_fsdp(hook):
                hook(owner, None)


def _declared_ties(module: nn.Module) -> dict[str, str]:
    """Return {name: other name} of parameters that should be equal, as models of transformers declare it."""
    ties: dict[str, str] = {}
    for prefix, owner in module.named_modules():
        declared = vars(owner).get("all_tied_weights_keys")
        if isinstance(declared, dict):
            dot = f"{prefix}." if prefix else ""
            ties |= {dot + name: dot + other for name, other in declared.items()}
    return ties


def _is_wrapper(tensor: torch.Tensor) -> bool:
    kind = type(tensor)
    return is_traceable_wrapper_subclass(tensor) or kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def has_distributed(module: nn.Module) -> bool:
    """Whether a parameter or buffer of a module is distributed."""
    # Names are expensive, and not needed.
    owners = module.modules()
    tensors = itertools.chain.from_iterable((*one._parameters.values(), *one._buffers.values()) for one in owners)
    return any(tensor is not None and is_distributed(tensor) for tensor in tensors)


def keep_module(module: nn.Module, transaction: Transaction) -> None:
    """Record the tensors of a module."""
    for owner in module.modules():
        for own in (owner._parameters, owner._buffers):
            transaction.on_undo(functools.partial(_put_back, own, dict(own)))


def keep_values(owner: nn.Module, transaction: Transaction) -> None:
    """Record the values of a module that loads itself."""
    for tensor in {id(one): one for one in (*owner.parameters(), *owner.buffers())}.values():
        transaction.keep(tensor)
    for one in owner.modules():
        if type(one).set_extra_state is not nn.Module.set_extra_state:
            transaction.on_undo(functools.partial(one.set_extra_state, copy.deepcopy(one.get_extra_state())))


def _put_back(own: dict[str, Any], before: dict[str, Any]) -> None:
    if any(own.get(name) is not tensor for name, tensor in before.items()) or len(own) != len(before):
        own.clear()
        own.update(before)


def can_initialize(module: nn.Module) -> bool:
    """Whether a module can compute values that no file has: models of transformers can, from version 5 on."""
    library = sys.modules.get("transformers.modeling_utils")
    return "transformers.initialization" in sys.modules and isinstance(module, library.PreTrainedModel)  # type: ignore[union-attr]


def initialize_missing(module: Any, slots: Slots) -> None:
    """Let a model compute the tensors still on the meta device, such as the frequencies of rotary embeddings.

    Tensors that are marked as initialised are skipped.
    """
    for slot in slots:
        if slot.tensor.is_meta:
            slot.tensor = slot.materialize(torch.empty_like(slot.tensor, device="cpu"))
            for place in slot.places:
                place.put(slot.tensor)
                place.owner._is_hf_initialized = False  # type: ignore[assignment]
        else:
            slot.tensor._is_hf_initialized = True  # type: ignore[attr-defined]
    module.initialize_weights()
