"""Casts of tensors under the dotted path of MAX. They compile nothing, so `session` is ignored."""

from __future__ import annotations

from collections.abc import Sequence

from max_weights._buffer import Buffer, DLPackArray
from max_weights._devices import Device
from max_weights._dtype import DType

__all__ = ["cast_dlpack_to", "cast_tensor_to", "cast_tensors_to"]


def cast_dlpack_to(
    raw_tensor: DLPackArray, old_dtype: DType, new_dtype: DType, device: Device, session: object = None
) -> Buffer:
    """Return the values of a tensor of any library in another dtype.

    Args:
        raw_tensor: The tensor.
        old_dtype: The dtype of its bytes, if the tensor's own dtype differs, such as uint8 for fp8.
        new_dtype: The dtype of the result.
        device: The device of the result.
        session: Not needed here.

    Raises:
        DeviceError: the device is not the host.

    Example:
        >>> from max_weights.graph._buffer_utils import cast_dlpack_to
        >>> cast_dlpack_to(np.ones(2, "f4"), DType.float32, DType.int8, max_weights.driver.CPU()).dtype
        int8
    """
    del session
    buffer = Buffer.from_dlpack(raw_tensor)
    if buffer.dtype != old_dtype:
        buffer = buffer.view(old_dtype)
    return buffer.astype(new_dtype).to(device)


def cast_tensor_to(tensor: Buffer, new_dtype: DType, session: object = None) -> Buffer:
    """Return a tensor in another dtype; the same object if it has that dtype.

    Args:
        tensor: The tensor.
        new_dtype: The other dtype.
        session: Not needed here.

    Raises:
        ValueError: there is no such dtype.

    Example:
        >>> from max_weights.graph._buffer_utils import cast_tensor_to
        >>> cast_tensor_to(max_weights.Buffer.of(np.ones(2, "f4")), DType.int8).dtype
        int8
    """
    del session
    return tensor if tensor.dtype == new_dtype else tensor.astype(new_dtype)


def cast_tensors_to(tensors: Sequence[Buffer] | None, new_dtype: DType, session: object = None) -> list[Buffer]:
    """Return several tensors in another dtype; an empty list for `None`.

    Args:
        tensors: The tensors.
        new_dtype: The other dtype.
        session: Not needed here.

    Raises:
        ValueError: there is no such dtype.

    Example:
        >>> from max_weights.graph._buffer_utils import cast_tensors_to
        >>> cast_tensors_to(None, DType.int8)
        []
    """
    return [cast_tensor_to(tensor, new_dtype, session) for tensor in tensors or ()]
