"""`Dim`, `Shape`, `DeviceRef`, `TensorType`: algebra outside of a graph, and inside."""

from max.driver import CPU
from max.dtype import DType
from max.graph import AlgebraicDim, BufferType, DeviceRef, Dim, Shape, StaticDim, SymbolicDim, TensorType

# --- dimensions ---------------------------------------------------------------------------------------------------------
Dim(3)
Dim("n")
type(Dim(3)).__name__
type(Dim("n")).__name__
Dim(Dim(3))
Dim(3) == 3
Dim("n") == "n"
Dim("n") == Dim("m")
Dim(3) == Dim("n")
isinstance(Dim(3), StaticDim)
isinstance(Dim("n"), SymbolicDim)
repr(Dim(3))
repr(Dim("n"))
str(Dim(3))
int(Dim(3))
int(Dim("n"))
Dim(3).dim
Dim("n").name
Dim("not a name")
Dim("")
Dim("3n")
Dim(-1)  # differs: negative
Dim(1.5)
Dim(2**63)
Dim(2**63 - 1)
Dim(True)  # differs: negative
Dim(None)
hash(Dim(3)) == hash(Dim(3))
{Dim(3): 1}[Dim(3)]
Dim(3) < Dim(4)
Dim(3) * 2
Dim(3) + Dim(4)
Dim(7) // 2
Dim(3) - 1
-Dim(3)  # differs: negative
[*range(Dim(3))]  # differs: shapes

# --- shapes -------------------------------------------------------------------------------------------------------------
shape = Shape([2, "n", 3])
shape
repr(shape)
str(shape)
shape.rank
shape.static_dims
shape == [2, "n", 3]
shape == (2, "n", 3)  # differs: shapes
shape[0]
shape[-1]
shape[:2]
type(shape[:2]).__name__  # differs: shapes
isinstance(shape, list)
len(shape)
[int(dim) for dim in Shape([4, 5])]
Shape(5)
Shape(Shape([1]))
Shape(()).rank
Shape("n")  # differs: negative
Shape([2.5])
Shape([2, 3]).static_dims
Shape.is_static(Shape([2, 3]))
Shape.is_static([2, "n"])
[str(name) for name in shape.parameters]
Shape([2]) + [3]  # differs: shapes
hash(Shape([2]))

# --- devices ------------------------------------------------------------------------------------------------------------
DeviceRef.CPU()
DeviceRef.GPU()
DeviceRef.GPU(1)
DeviceRef("gpu", 1) == DeviceRef.GPU(1)
DeviceRef("cpu")
DeviceRef("tpu")
DeviceRef("gpu", -1)  # differs: negative
repr(DeviceRef.GPU(1))
[DeviceRef.CPU().is_cpu(), DeviceRef.CPU().is_gpu(), DeviceRef.GPU().is_gpu()]
DeviceRef.CPU().id
DeviceRef.CPU().device_type
hash(DeviceRef.GPU(1)) == hash(DeviceRef.GPU(1))
DeviceRef.CPU() == DeviceRef.GPU()
DeviceRef.from_device(CPU())
DeviceRef.CPU().to_device().is_host
str(CPU())  # differs: printed
CPU().label
CPU().id

# --- types --------------------------------------------------------------------------------------------------------------
kind = TensorType(DType.float32, [2, "n"], DeviceRef.CPU())
kind
kind == TensorType(DType.float32, (2, "n"), DeviceRef.CPU())
kind == TensorType(DType.float16, (2, "n"), DeviceRef.CPU())
kind.rank
kind.dtype
kind.device
TensorType(DType.float32, [2, 3], DeviceRef.CPU()).num_elements()
kind.num_elements()  # differs: symbolic-sizes
kind.cast(DType.int8)
kind.as_buffer()
type(kind.as_buffer()).__name__
BufferType(DType.float32, [2], DeviceRef.CPU())
TensorType(DType.float32, [2, -1], DeviceRef.CPU())  # differs: negative-sizes
TensorType(DType.float32, [2])
TensorType("float32", [2], DeviceRef.CPU())  # differs: names
hash(kind) == hash(TensorType(DType.float32, [2, "n"], DeviceRef.CPU()))
AlgebraicDim.__name__
