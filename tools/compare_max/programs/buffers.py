"""`driver.Buffer`: made, described, indexed, copied."""

import numpy as np
from max import driver
from max.driver import CPU, Buffer, accelerator_count, load_devices, scan_available_devices
from max.dtype import DType
from max.graph import DeviceRef

rows = np.arange(6, dtype=np.float32).reshape(2, 3)
buffer = Buffer.from_numpy(rows)
buffer
buffer.dtype
buffer.shape
buffer.rank
buffer.num_elements
buffer.element_size
buffer.is_contiguous
buffer.is_host
str(buffer.device)  # differs: printed
buffer.to_numpy()
np.from_dlpack(buffer)
buffer.copy()
buffer.contiguous()
buffer.view(DType.uint8, [24])
buffer.view(DType.int32)
buffer.view(DType.int32, (3, 2))
buffer.view(DType.float64)
buffer.view(DType.float32, (7,))
buffer.to(CPU()) is buffer
buffer.to(CPU())
buffer.__dlpack_device__()

# --- items --------------------------------------------------------------------------------------------------------------
buffer[0]  # differs: indexing
buffer[0, 1].item()
buffer[1, 2].item()
buffer[-1, -1].item()
buffer[0:1]  # differs: indexing
buffer[:, 1]
buffer[:, ::2].is_contiguous
buffer[:, ::2].contiguous()
buffer[5]  # differs: indices
buffer[0, 0, 0]  # differs: indices
buffer.item()
Buffer.from_numpy(np.array(7, np.int8)).item()
Buffer.scalar(3.5, DType.float32, CPU())
Buffer.scalar(3.5, DType.float32, CPU()).item()
Buffer.scalar(7, DType.int64).item()
int(Buffer.from_numpy(np.array(55, np.uint8)))  # differs: numbers
float(Buffer.from_numpy(np.array(1.5, np.float32)))  # differs: numbers
bool(Buffer.from_numpy(np.array(0, np.int32)))  # differs: truth
int(buffer)

# --- made ---------------------------------------------------------------------------------------------------------------
Buffer(DType.float32, [2, 3]).shape
Buffer(DType.float32, [2, 3], CPU()).dtype
Buffer(DType.bfloat16, (4,)).num_elements
Buffer(dtype=DType.int8, shape=[0]).num_elements
Buffer.zeros([2, 2], DType.int32)
Buffer.zeros([2, 2], DType.int32, CPU())
Buffer.zeros((), DType.float64).item()
Buffer.from_dlpack(rows)
Buffer.from_dlpack(buffer)
Buffer.from_numpy(rows[:, ::2])
Buffer.from_numpy(rows.T)
Buffer.from_numpy(np.zeros((0, 2), np.float32))
Buffer.from_numpy(np.array([True, False]))
Buffer.from_numpy(np.array(["a"]))  # differs: not-arrays
[Buffer.from_numpy(np.ones(3, kind)) for kind in ("?", "b", "h", "i", "q", "B", "H", "I", "Q", "e", "f", "d")]

# --- written to ---------------------------------------------------------------------------------------------------------
target = Buffer.from_numpy(np.zeros((2, 3), np.float32))
target[0, 1] = 5
target
target.inplace_copy_from(buffer)
target
target.inplace_copy_from(Buffer.zeros([3], DType.float32))
shared = np.zeros(3, np.float32)
view = Buffer.from_numpy(shared)
view[1] = 2
shared
copied = Buffer.from_numpy(shared).copy()
copied[0] = 9
shared
buffer == buffer
len(buffer)  # differs: indexing

# --- devices ------------------------------------------------------------------------------------------------------------
[str(device) for device in [CPU(0)]]  # differs: printed
CPU() == CPU(0)
CPU().is_host
CPU().api
isinstance(accelerator_count(), int)
isinstance(scan_available_devices(), list)
load_devices([])
DeviceRef.from_device(CPU())
isinstance(driver.__version__, str)
CPU().synchronize()
sorted(CPU().stats)  # differs: facts-of-devices
CPU().max_single_alloc_size > 0  # differs: facts-of-devices
CPU().architecture_name  # differs: facts-of-devices


# --- copies and writing -------------------------------------------------------------------------------------------------
def written(to, key, value=8):
    """The tensor, after an element was written."""
    to[key] = value
    return to


def contents(buffer):
    """The elements."""
    return buffer.to_numpy().tolist()


def frozen():
    """A read-only array."""
    array = np.arange(3, dtype=np.float32)
    array.flags.writeable = False
    return array


whole = Buffer.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
contents(written(whole.contiguous(), (0, 0)))
contents(whole.copy(CPU()))
contents(whole.copy(device=CPU()))
contents(whole)
[contents(there) for there in whole.to([CPU(), CPU()])]
whole.to([])
contents(whole.to((CPU(),))[0])
contents(whole.to(device=CPU()))
whole.inplace_copy_from(whole)
whole.inplace_copy_from(Buffer.from_numpy(whole.to_numpy()))
contents(whole)
whole.pinned  # differs: pinned
Buffer(DType.float32, [2], CPU()).pinned  # differs: pinned
contents(Buffer.from_numpy(frozen()))
contents(written(Buffer.from_numpy(frozen()), 0))  # differs: read-only
contents(written(Buffer.scalar(3, DType.int32), ()))
contents(written(Buffer.scalar(3, DType.int32), 0))  # differs: index-of-a-scalar
contents(Buffer.scalar(3, DType.int32)[0])  # differs: indices
