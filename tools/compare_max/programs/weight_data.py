"""`WeightData`: made by hand, replaced, converted."""

import copy
import dataclasses

import numpy as np
from max.driver import Buffer
from max.dtype import DType
from max.graph import Shape
from max.graph.quantization import QuantizationEncoding
from max.graph.weights import WeightData

rows = np.arange(6, dtype=np.float32).reshape(2, 3)
data = WeightData.from_numpy(rows, "rows")
data
type(data.data).__name__
data.name
data.dtype
data.shape
isinstance(data.shape, Shape)
data.quantization_encoding
WeightData(rows, "rows", DType.float32, Shape(rows.shape))
WeightData(rows, "rows", DType.float32, Shape(rows.shape), QuantizationEncoding.Q4_0).quantization_encoding
WeightData(Buffer.from_numpy(rows), "rows", DType.float32, Shape(rows.shape)).to_buffer()

# --- a dataclass --------------------------------------------------------------------------------------------------------
dataclasses.is_dataclass(data)
[field.name for field in dataclasses.fields(data)]  # differs: fields
dataclasses.replace(data, name="columns")
dataclasses.replace(data, name="columns").data is data.data
dataclasses.replace(data, quantization_encoding=QuantizationEncoding.Q4_K).quantization_encoding
dataclasses.replace(data, data=rows.T.copy(), shape=Shape([3, 2]))
copy.copy(data)
copy.deepcopy(data)  # differs: copies
data == data
data == WeightData.from_numpy(rows, "rows")  # differs: equality

# --- converting ---------------------------------------------------------------------------------------------------------
data.astype(DType.float32) is data
data.to_buffer()
type(data.to_buffer()).__name__
data.to_buffer() is data.to_buffer()
data.to_buffer().to_numpy()
np.from_dlpack(data)
WeightData.from_numpy(np.array(3.0), "scalar")
WeightData.from_numpy(np.zeros((0, 2), np.int8), "empty")
WeightData.from_numpy(rows[:, ::2], "strided").shape
[WeightData.from_numpy(np.ones(2, dtype), "x").dtype for dtype in "?bhilBHILefd"]
WeightData.from_numpy(np.ones(2, "U3"), "text").dtype
WeightData.from_numpy([1, 2], "list").dtype  # differs: arrays
