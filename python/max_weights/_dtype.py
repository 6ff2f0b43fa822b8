"""`DType`, the type of one element, and `finfo`, the limits of the floating-point types.

NumPy, ml_dtypes and torch are imported only by the methods that convert to them.
"""

from __future__ import annotations

import builtins
import sys
from enum import Enum, EnumMeta
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

__all__ = ["DType", "DTypeLike", "finfo"]

DTypeLike: TypeAlias = "DType | str | np.dtype[np.generic] | type[object] | torch.dtype"
"""What `DType(...)` accepts: a `DType`, a name, or a dtype of NumPy, ml_dtypes, JAX or torch."""


class _Values(EnumMeta):
    """Rejects values that merely equal a member's number, as `True` and `1.0` equal 1."""

    def __call__(cls, value: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(value, builtins.bool):
            raise TypeError(f"{value!r} is not a dtype")
        if not isinstance(value, int | str | cls):
            return _of_library(value)
        return super().__call__(value, *arguments, **options)


class DType(Enum, metaclass=_Values):
    """The type of one element of a tensor.

    The call `DType("float32")` parses a name, in upper or lower case. It accepts the members' names, short ones of file
    formats (`f32`, `BF16`, `F8_E4M3`), NumPy's (`single`, `<f4`) and torch's (`torch.bfloat16`). A short name that
    NumPy reads differently, such as `I8`, has its meaning in safetensors: 8 bits. The dtypes of libraries are accepted:
    `DType(np.float16)`, `DType(torch.float16)`, `DType(jnp.float16)`. ValueError for a dtype that has no counterpart
    here.
    """

    bool = 1
    int8 = 135
    int16 = 137
    int32 = 139
    int64 = 141
    uint8 = 134
    uint16 = 136
    uint32 = 138
    uint64 = 140
    float16 = 79
    float32 = 81
    float64 = 82
    bfloat16 = 80
    float4_e2m1fn = 64
    float6_e2m3fn = 65
    float6_e3m2fn = 66
    float8_e8m0fnu = 73
    float8_e4m3fn = 75
    float8_e4m3fnuz = 76
    float8_e5m2 = 77
    float8_e5m2fnuz = 78
    complex64 = 32

    finfo: ClassVar[type[finfo]]
    """The class `finfo`, as MAX has it here, too."""

    def __repr__(self) -> str:
        return self._name_

    @classmethod
    def _missing_(cls, value: object) -> DType:
        problem = f"{value!r} is not a dtype"
        if isinstance(value, str):
            name = value.strip().lower()
            if name.startswith("torch.") and name[6:] in _TORCH_ALIASES:
                return cls[_TORCH_ALIASES[name[6:]]]
            for prefix in _PREFIXES:
                name = name.removeprefix(prefix)
            member = cls._member_map_.get(_ALIASES.get(name, name))
            if isinstance(member, cls):
                return member
            if name in _AMBIGUOUS:
                problem = f"{value!r} is ambiguous: {_AMBIGUOUS[name]}"
        names = ", ".join(cls._member_map_)
        raise ValueError(f"{problem}; choose one of {names} (or a short name, such as f32, BF16 or F8_E4M3)")

    @property
    def size_in_bits(self) -> int:
        """The number of bits of one element: 4 and 6 for the packed types."""
        return _BITS[self._name_]

    @property
    def size_in_bytes(self) -> int:
        """The number of bytes of one element. ValueError for types of 4 and 6 bits, which do not fill whole bytes."""
        bits = _BITS[self._name_]
        if bits % 8:
            raise ValueError(
                f"an element of {self} has {bits} bits, not a whole number of bytes; "
                "use size_in_bits, and round up the product"
            )
        return bits // 8

    @property
    def align(self) -> int:
        """The alignment of an element in bytes: its size, but at most that of its scalar part."""
        return 4 if self is DType.complex64 else -(-_BITS[self._name_] // 8)

    def is_integral(self) -> builtins.bool:
        """Ask whether this is a signed or unsigned integer; `bool` is not.

        Returns:
            Whether it is.

        Example:
            >>> max_weights.DType.uint8.is_integral()
            True
        """
        return self.is_signed_integral() or self.is_unsigned_integral()

    def is_signed_integral(self) -> builtins.bool:
        """Ask whether this is one of int8 to int64.

        Returns:
            Whether it is.

        Example:
            >>> max_weights.DType.uint8.is_signed_integral()
            False
        """
        return self._name_.startswith("int")

    def is_unsigned_integral(self) -> builtins.bool:
        """Ask whether this is one of uint8 to uint64; `bool` is not.

        Returns:
            Whether it is.

        Example:
            >>> max_weights.DType.uint8.is_unsigned_integral()
            True
        """
        return self._name_.startswith("uint")

    def is_float(self) -> builtins.bool:
        """Ask whether this is a real floating-point type, of any size down to 4 bits.

        Returns:
            Whether it is.

        Example:
            >>> max_weights.DType.bfloat16.is_float()
            True
        """
        return self._name_ in _FLOAT_LIMITS

    def is_half(self) -> builtins.bool:
        """Ask whether this is float16 or bfloat16.

        Returns:
            Whether it is.

        Example:
            >>> max_weights.DType.bfloat16.is_half()
            True
        """
        return self is DType.float16 or self is DType.bfloat16

    def is_float8(self) -> builtins.bool:
        """Ask whether this is a floating-point type of 8 bits, including float8_e8m0fnu (a scale).

        Returns:
            Whether it is.

        Example:
            >>> max_weights.DType.float8_e5m2.is_float8()
            True
        """
        return self._name_.startswith("float8")

    def to_numpy(self) -> np.dtype[np.generic]:
        """Convert to the NumPy dtype.

        bfloat16 and the floats of 8 bits and less come from ml_dtypes, whose 4 and 6 bit types take a byte per element.

        Returns:
            The dtype.

        Raises:
            ImportError: ml_dtypes is needed and missing.

        Example:
            >>> max_weights.DType.float16.to_numpy()
            dtype('float16')
        """
        import numpy as np

        if self._name_ not in _FROM_ML_DTYPES:
            return np.dtype(self._name_)
        try:
            import ml_dtypes
        except ImportError as error:
            raise ImportError(
                f"NumPy has no {self._name_}; `pip install ml-dtypes` provides it. Without it, take the bytes (`view` "
                "as an unsigned integer), hand the tensor to torch or jax by DLPack, or convert it to float32",
                name="ml_dtypes",
            ) from error
        scalar = getattr(ml_dtypes, self._name_, None)
        if scalar is None:
            raise ImportError(
                f"ml_dtypes {ml_dtypes.__version__} has no {self._name_}; `pip install -U ml-dtypes`", name="ml_dtypes"
            )
        dtype: np.dtype[np.generic] = np.dtype(scalar)
        return dtype

    @classmethod
    def from_numpy(cls, dtype: npt.DTypeLike) -> DType:
        """Convert from a NumPy dtype.

        Args:
            dtype: Anything that `np.dtype` accepts.

        Returns:
            The `DType`.

        Raises:
            ValueError: It has no counterpart here, or is of foreign byte order, because the order would be lost.
            TypeError: It is no dtype.

        Example:
            >>> max_weights.DType.from_numpy(np.float16)
            float16
        """
        import numpy as np

        if dtype is None:
            raise TypeError("None is not a dtype (NumPy would read it as float64)")
        numpy_dtype: np.dtype[np.generic] = np.dtype(dtype)
        member = cls._member_map_.get(numpy_dtype.name)
        if not isinstance(member, cls):
            raise ValueError(f"the NumPy dtype {numpy_dtype} has no counterpart among {', '.join(cls._member_map_)}")
        if not numpy_dtype.isnative:
            raise ValueError(
                f"the NumPy dtype {numpy_dtype.str} is not in native byte order; convert the array with "
                "`array.astype(array.dtype.newbyteorder('='))`"
            )
        return member

    def to_torch(self) -> torch.dtype:
        """Convert to the torch dtype.

        float4_e2m1fn becomes `torch.float4_e2m1fn_x2`, two elements in a byte: the last dimension of such a tensor is
        halved.

        Returns:
            The dtype.

        Raises:
            ValueError: torch has none.
            ImportError: torch is missing.

        Example:
            >>> max_weights.DType.bfloat16.to_torch()
            torch.bfloat16
        """
        name = "float4_e2m1fn_x2" if self is DType.float4_e2m1fn else self._name_
        if name.startswith("float6_"):
            raise ValueError(
                f"torch has no dtype for {self._name_}; take the bytes as torch.uint8, or convert to float32"
            )
        try:
            import torch
        except ImportError as error:
            raise ImportError("torch is not installed; `pip install torch`", name="torch") from error
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"torch {torch.__version__} has no dtype {name}; a newer torch may have it")
        return dtype

    @classmethod
    def from_torch(cls, dtype: torch.dtype) -> DType:
        """Convert from a torch dtype.

        Args:
            dtype: The dtype of torch.

        Returns:
            The `DType`.

        Raises:
            ValueError: It has no counterpart here.
            TypeError: It is no dtype of torch.

        Example:
            >>> max_weights.DType.from_torch(torch.float16)
            float16
        """
        name = str(dtype)
        if isinstance(dtype, str) or not name.startswith("torch."):
            raise TypeError(f"{dtype!r} is not a torch dtype")
        member = cls._member_map_.get(name.removeprefix("torch.").removesuffix("_x2"))
        if not isinstance(member, cls):
            raise ValueError(f"{name} has no counterpart among {', '.join(cls._member_map_)}")
        return member


def _of_library(value: object) -> DType:
    """Return the `DType` of a dtype object of NumPy, ml_dtypes, JAX or torch, of those that have been imported."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.dtype):
        return DType.from_torch(value)
    if numpy is not None:
        if isinstance(value, type):
            # JAX's are not NumPy scalars, but have a NumPy dtype; those of ml_dtypes are scalars.
            dtype = getattr(value, "dtype", None)
            value = numpy.dtype(value) if issubclass(value, numpy.generic) else dtype or value
        if isinstance(value, numpy.dtype):
            return DType.from_numpy(value)
    return DType._missing_(value)  # raises the error


class finfo:
    """The limits of a floating-point dtype, as `numpy.finfo` and `ml_dtypes.finfo` give them.

    Args:
        dtype: A floating-point `DType`, or anything that `DType(...)` accepts. TypeError for any other dtype.
    """

    __slots__ = ("bits", "dtype", "eps", "max", "min", "smallest_normal", "tiny")

    dtype: DType
    """The dtype."""
    bits: int
    """The number of bits of one element."""
    eps: float
    """The difference between 1.0 and the next larger number."""
    max: float
    """The largest finite number."""
    min: float
    """The smallest finite number: `-max`, but 2**-127 for float8_e8m0fnu, which has no sign."""
    tiny: float
    """The same as `smallest_normal`."""
    smallest_normal: float
    """The smallest positive number that is stored in full precision."""

    def __init__(self, dtype: DTypeLike) -> None:
        dtype = DType(dtype)
        limits = _FLOAT_LIMITS.get(dtype.name)
        if limits is None:
            raise TypeError(f"{dtype} is not a floating-point dtype, so it has no finfo")
        self.dtype = dtype
        self.bits = dtype.size_in_bits
        self.eps, self.max, self.tiny = limits
        self.smallest_normal = self.tiny
        self.min = self.tiny if dtype is DType.float8_e8m0fnu else -self.max

    def __repr__(self) -> str:
        return (
            f"finfo({self.dtype}, bits={self.bits}, eps={self.eps}, max={self.max}, min={self.min}, tiny={self.tiny})"
        )


DType.finfo = finfo

# eps, max, smallest normal number
_FLOAT_LIMITS: dict[str, tuple[float, float, float]] = {
    "float4_e2m1fn": (0.5, 6.0, 1.0),
    "float6_e2m3fn": (0.125, 7.5, 1.0),
    "float6_e3m2fn": (0.25, 28.0, 0.25),
    "float8_e8m0fnu": (1.0, 2.0**127, 2.0**-127),
    "float8_e4m3fn": (0.125, 448.0, 2.0**-6),
    "float8_e4m3fnuz": (0.125, 240.0, 2.0**-7),
    "float8_e5m2": (0.25, 57344.0, 2.0**-14),
    "float8_e5m2fnuz": (0.25, 57344.0, 2.0**-15),
    "float16": (2.0**-10, 65504.0, 2.0**-14),
    "bfloat16": (2.0**-7, (2.0 - 2.0**-7) * 2.0**127, 2.0**-126),
    "float32": (2.0**-23, (2.0 - 2.0**-23) * 2.0**127, 2.0**-126),
    "float64": (2.0**-52, (2.0 - 2.0**-52) * 2.0**1023, 2.0**-1022),
}

_FROM_ML_DTYPES = _FLOAT_LIMITS.keys() - {"float16", "float32", "float64"}

_BITS = {"bool": 8, "complex64": 64, "bfloat16": 16}
for _name in DType._member_map_:
    if _name not in _BITS:
        # float32 -> 32, float8_e4m3fn -> 8
        _BITS[_name] = int(_name.partition("_")[0].lstrip("uintfloa"))

_PREFIXES = ("dtype.", "torch.", "jax.numpy.", "numpy.", "np.", "jnp.", "ml_dtypes.")

# Lower-case names other than the members' own: of safetensors, of NumPy, of torch, and common ones.
_ALIAS_PAIRS = """
    c64=complex64 f4=float4_e2m1fn f6_e2m3=float6_e2m3fn f6_e3m2=float6_e3m2fn f8_e8m0=float8_e8m0fnu
    f8_e4m3=float8_e4m3fn f8_e4m3fnuz=float8_e4m3fnuz f8_e5m2=float8_e5m2 f8_e5m2fnuz=float8_e5m2fnuz
    f16=float16 bf16=bfloat16 f32=float32 f64=float64 u8=uint8 i8=int8 u16=uint16 i16=int16 u32=uint32
    i32=int32 u64=uint64 i64=int64
    |b1=bool |i1=int8 <i2=int16 <i4=int32 <i8=int64 |u1=uint8 <u2=uint16 <u4=uint32 <u8=uint64 <f2=float16
    <f4=float32 <f8=float64 <c8=complex64 bool_=bool single=float32
    float4_e2m1fn_x2=float4_e2m1fn
    half=float16 double=float64 short=int16 long=int64 fp16=float16 fp32=float32 fp64=float64
"""
_ALIASES = dict(pair.split("=") for pair in _ALIAS_PAIRS.split())

# torch's meaning of words that mean something else elsewhere.
_TORCH_ALIASES = {"float": "float32", "int": "int32", "cfloat": "complex64"}

_AMBIGUOUS = {
    "float": "32 bits in torch, 64 in NumPy",
    "int": "32 bits in torch, 64 in NumPy",
    "byte": "unsigned in torch, signed in NumPy",
    "f8": "64 bits in NumPy, 8 elsewhere",
    "fp8": "there are several 8-bit kinds",
    "float8": "there are several 8-bit kinds",
    "float8_e4m3": "float8_e4m3fn is the common one; the kind with infinities is not supported",
}
