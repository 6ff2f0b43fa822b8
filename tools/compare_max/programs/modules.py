"""`Module`, `Layer`, `LayerList`, `Sequential`: names, walks, hooks."""

from max.dtype import DType
from max.graph import DeviceRef, Weight
from max.nn import Layer, LayerList, Module, Sequential
from max.nn.layer import Shardable, add_layer_hook, clear_hooks

cpu = DeviceRef.CPU()


class Linear(Module):
    """A weight of that many rows and columns."""

    def __init__(self, rows, columns):
        super().__init__()
        self.weight = Weight("weight", DType.float32, (rows, columns), cpu)

    def __call__(self, x):
        return x


class MLP(Module):
    """Three of them, without a call of the base class."""

    def __init__(self):
        self.up = Linear(5, 10)
        self.gate = Linear(5, 10)
        self.down = Linear(10, 5)

    def __call__(self, x):
        return self.down(self.up(x))


class Block(Module):
    """A layer with a norm and an MLP."""

    def __init__(self):
        super().__init__()
        self.norm = Weight("norm", DType.float32, (5,), cpu)
        self.mlp = MLP()

    def __call__(self, x):
        return self.mlp(x)


class Model(Module):
    """Layers in a list."""

    def __init__(self, layers=2):
        super().__init__()
        self.embed = Linear(7, 5)
        self.layers = LayerList([Block() for _ in range(layers)])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Empty(Module):
    """A module to give weights to."""

    def __call__(self, x):
        return x


# --- names --------------------------------------------------------------------------------------------------------------
mlp = MLP()
sorted(mlp.sublayers)
mlp.layer_weights
sorted(mlp.raw_state_dict())
{name: w.name for name, w in mlp.raw_state_dict().items()}
mlp.state_dict()
{name: w.name for name, w in mlp.raw_state_dict().items()}
mlp.up.weight.name
model = Model()
sorted(model.raw_state_dict())
list(model.raw_state_dict())
sorted(model.layers[0].layer_weights)
sorted(model.layers.sublayers)
[name for name, _ in model.named_modules()]
sorted(name for name, _ in model.named_modules())
sorted(name for name, _ in mlp.named_modules())
[type(module).__name__ for _, module in mlp.named_modules()]
model.state_dict(auto_initialize=False)
sorted(model.state_dict())
model.layers[1].mlp.down.weight.name
sorted(Model(0).raw_state_dict())

# --- attributes that change ---------------------------------------------------------------------------------------------
changed = MLP()
changed.up = Linear(2, 3)
sorted(changed.raw_state_dict())
changed.raw_state_dict()["up.weight"].shape
changed.extra = Weight("extra", DType.int8, (2,), cpu)
sorted(changed.raw_state_dict())
changed.replace_module("gate", Linear(1, 1))
changed.raw_state_dict()["gate.weight"].shape
changed.replace_module("not_there", Linear(1, 1))
sorted(changed.raw_state_dict())
del changed.down
sorted(changed.raw_state_dict())

# --- shared weights -----------------------------------------------------------------------------------------------------
tied = MLP()
tied.set_shared_weight("head", tied.up.weight)
tied.head is tied.up.weight
sorted(tied.raw_state_dict())  # differs: shared-weights
twice = MLP()
twice.gate = twice.up
sorted(twice.raw_state_dict())
clash = Empty()
clash.a = Weight("w", DType.float32, (1,), cpu)
clash.b = Weight("w", DType.float32, (1,), cpu)
sorted(clash.raw_state_dict())  # differs: name-clash

# --- lists --------------------------------------------------------------------------------------------------------------
isinstance(Module(), Module)  # differs: modules
items = LayerList([Linear(1, 1), Linear(2, 2)])
len(items)
sorted(items.sublayers)
items.append(Linear(3, 3))
len(items)
sorted(items.sublayers)  # differs: layer-lists
items.insert(0, Linear(4, 4))
{name: layer.weight.shape for name, layer in sorted(items.sublayers.items())}  # differs: layer-lists
items.extend([Linear(5, 5)])
{name: layer.weight.shape for name, layer in sorted(items.sublayers.items())}  # differs: layer-lists
items[0].weight.shape
items[-1].weight.shape  # differs: layer-lists
[layer.weight.shape for layer in items]  # differs: layer-lists
items[1] = Linear(9, 9)
{name: layer.weight.shape for name, layer in sorted(items.sublayers.items())}  # differs: layer-lists
LayerList([Linear(1, 1), Linear(2, 2)])("x")
isinstance(items, Module)
isinstance(items, Layer)
items[99]
sequence = Sequential([Linear(1, 1), MLP()])
sequence("x")
sorted(sequence.raw_state_dict())
sorted(Sequential(layers=[Linear(1, 1)]).raw_state_dict())
isinstance(Linear(1, 1), Shardable)

# --- hooks --------------------------------------------------------------------------------------------------------------
seen = []


def note(layer, args, kwargs, outputs):
    """Record the arguments of a hook."""
    seen.append([type(layer).__name__, list(args), dict(kwargs), outputs])


add_layer_hook(note)
MLP()("x")
seen
seen.clear()
MLP()(x="y")
seen
clear_hooks()
seen.clear()
MLP()("x")
seen
add_layer_hook(lambda layer, args, kwargs, outputs: f"{outputs}!")
MLP()("x")
clear_hooks()
add_layer_hook(lambda layer, args, kwargs, outputs: 1 / 0)
MLP()("x")
clear_hooks()
Model()("z")
