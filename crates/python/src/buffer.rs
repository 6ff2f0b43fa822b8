//! `Buffer`: the core's tensor in Python, with the buffer protocol and DLPack.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::path::PathBuf;

use max_weights::buffer::Buffer as Tensor;
use max_weights::device::Device;
use max_weights::dtype::DType;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyComplex, PyFloat, PyInt, PyList, PyTuple, PyType};

use crate::buffer_of;
use crate::buffer_protocol;
use crate::convert::{PythonSequence, dtype_from_python, dtype_to_python, index_from_python};
use crate::dlpack;
use crate::ending::detached;
use crate::error::{BindingResult, interrupt};
use crate::numbers;
use crate::out;
use crate::own::{own_or_imported, require_file};
use crate::package;
use crate::pickle;
use crate::place;
use crate::tensor::PyTensor;

#[pymethods]
impl PyTensor {
    #[new]
    #[pyo3(signature = (dtype, shape, device=None))]
    fn new_zeros(
        py: Python<'_>,
        dtype: &Bound<'_, PyAny>,
        shape: PythonSequence<i64>,
        device: Option<&Bound<'_, PyAny>>,
    ) -> BindingResult<Self> {
        Self::zeros(py, shape, dtype, device)
    }

    /// Return a tensor of rank 0.
    ///
    /// Args:
    ///     value: A number.
    ///     dtype: The dtype.
    ///     device: Where; default: the CPU.
    ///
    /// Raises:
    ///     OverflowError: an integer that the dtype does not hold.
    ///     DeviceError: no such device.
    ///
    /// Example:
    ///     >>> max_weights.Buffer.scalar(2, "int32").item()
    ///     2
    #[staticmethod]
    #[pyo3(signature = (value, dtype, device=None))]
    fn scalar<'py>(
        value: &Bound<'py, PyAny>,
        dtype: &Bound<'py, PyAny>,
        device: Option<&Bound<'py, PyAny>>,
    ) -> BindingResult<Bound<'py, Self>> {
        buffer_of::scalar(value, dtype_from_python(dtype)?, device)
    }

    /// Return the tensor of a file of bare elements, without a header, by memory map.
    ///
    /// Args:
    ///     filename: The file.
    ///     dtype: The type of the elements.
    ///     shape: The shape, or the number of elements.
    ///     mode: As in `numpy.memmap`. Modes `c` (or `copyonwrite`) and `r` (or `readonly`) never change the file, and a
    ///         truncated file is an error, as for weights. Modes `r+` (or `readwrite`) and `w+` (or `write`) are NumPy's.
    ///     offset: The first byte.
    ///
    /// Raises:
    ///     FileNotFoundError: there is no such file.
    ///     ValueError: the file is too short, or the mode is unknown.
    ///
    /// Example:
    ///     >>> max_weights.Buffer.mmap("model.safetensors", "uint8", 8).nbytes
    ///     8
    #[staticmethod]
    #[pyo3(signature = (filename, dtype, shape, mode="copyonwrite", offset=0))]
    fn mmap<'py>(
        py: Python<'py>,
        filename: PathBuf,
        dtype: &Bound<'py, PyAny>,
        shape: &Bound<'py, PyAny>,
        mode: &str,
        offset: usize,
    ) -> BindingResult<Bound<'py, PyAny>> {
        let shape =
            shape.extract().map(|dim| vec![dim]).or_else(|_| shape.extract().map(|PythonSequence(dims)| dims))?;
        buffer_of::file(py, filename, dtype_from_python(dtype)?, shape, mode, offset)
    }

    /// Return the tensor of an array, sharing its memory. Bytes in the other order are swapped into a copy.
    ///
    /// Args:
    ///     array: An array or a scalar of NumPy, also with the dtypes of ml_dtypes.
    ///
    /// Raises:
    ///     TypeError: not an array.
    ///     ValueError: a dtype that no `DType` stands for.
    ///
    /// Example:
    ///     >>> max_weights.Buffer.from_numpy(np.ones(3)).shape
    ///     (3,)
    #[classmethod]
    fn from_numpy<'py>(class: &Bound<'py, PyType>, array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        package::FROM_NUMPY.get(class.py())?.call1((array,))
    }

    /// Return the tensor of anything that has one, sharing its memory.
    ///
    /// Args:
    ///     value: A `Buffer`, an array, a weight, or a tensor of a library that supports DLPack.
    ///     what: Its name in errors.
    ///
    /// Raises:
    ///     TypeError: not a tensor.
    ///     ArgumentError: a tensor without elements here, or of a type that no `DType` stands for (a ValueError).
    ///
    /// Example:
    ///     >>> max_weights.Buffer.of(torch.ones(2, 3)).shape
    ///     (2, 3)
    #[staticmethod]
    #[pyo3(signature = (value, what=None))]
    fn of<'py>(value: &Bound<'py, PyAny>, what: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
        buffer_of::buffer_of(value, what)
    }

    /// Return the tensor of any DLPack producer, sharing its memory unless `copy` is true.
    ///
    /// It may be on a GPU (docs/gpu.md). It is read-only where the producer says so, or cannot say it (docs/security.md).
    ///
    /// Args:
    ///     array: Any object with `__dlpack__`.
    ///     copy: True for a copy.
    ///
    /// Raises:
    ///     BufferError: another device, an element type that no `DType` stands for, or a capsule that cannot be true.
    ///
    /// Example:
    ///     >>> max_weights.Buffer.from_dlpack(torch.ones(3)).nbytes
    ///     12
    #[staticmethod]
    #[pyo3(signature = (array, *, copy=None))]
    fn from_dlpack(array: &Bound<'_, PyAny>, copy: Option<bool>) -> BindingResult<Self> {
        let tensor = own_or_imported(array)?;
        Ok(Self { tensor: if copy == Some(true) { detached(array.py(), || tensor.copy(&interrupt))? } else { tensor } })
    }

    /// Return a new tensor of zeros, aligned to 64 bytes.
    ///
    /// Args:
    ///     shape: The shape.
    ///     dtype: The dtype.
    ///     device: Where; default: the CPU.
    ///
    /// Raises:
    ///     ValueError: a negative dimension, or a size that overflows.
    ///     MemoryError: there is not enough memory.
    ///     DeviceError: no such device.
    ///
    /// Example:
    ///     >>> max_weights.Buffer.zeros([2, 3], "float32").nbytes
    ///     24
    #[staticmethod]
    #[pyo3(signature = (shape, dtype, device=None))]
    fn zeros(
        py: Python<'_>,
        shape: PythonSequence<i64>,
        dtype: &Bound<'_, PyAny>,
        device: Option<&Bound<'_, PyAny>>,
    ) -> BindingResult<Self> {
        let place = device.map_or(Ok(Device::Cpu), place::device_from_python)?;
        let dtype = dtype_from_python(dtype)?;
        let tensor = detached(py, || Tensor::zeros(dtype, &shape.0)?.to(place, &interrupt))?;
        Ok(Self { tensor })
    }

    /// A new tensor of unspecified content, for a caller that fills all of it.
    #[staticmethod]
    fn _any(py: Python<'_>, shape: PythonSequence<i64>, dtype: &Bound<'_, PyAny>) -> BindingResult<Self> {
        let dtype = dtype_from_python(dtype)?;
        Ok(Self { tensor: detached(py, || Tensor::any(dtype, &shape.0))? })
    }

    /// The tensor over the memory of a buffer-protocol object, whose items are interpreted as `dtype` (of the same size).
    #[staticmethod]
    fn _from_memory(object: &Bound<'_, PyAny>, dtype: &Bound<'_, PyAny>) -> BindingResult<Self> {
        Ok(Self { tensor: buffer_protocol::import(object, dtype_from_python(dtype)?)? })
    }

    /// The type of the elements.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtype_to_python(py, self.tensor.dtype()).cloned()
    }

    /// The shape, slowest dimension first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.shape())
    }

    /// The strides, in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.strides())
    }

    /// Where the bytes live.
    #[getter]
    fn device<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let device = self.tensor.device();
        package::DEVICE.get(py)?.call1((device.label(), device.id()))
    }

    /// True if the bytes are in host memory.
    #[getter]
    fn is_host(&self) -> bool {
        self.tensor.device() == Device::Cpu
    }

    /// The number of dimensions.
    #[getter]
    fn rank(&self) -> usize {
        self.tensor.shape().len()
    }

    /// The product of the shape.
    #[getter]
    fn num_elements(&self) -> usize {
        self.tensor.elements()
    }

    /// Bytes of one element.
    ///
    /// Raises:
    ///     ValueError: a packed dtype, of less than a byte an element.
    #[getter]
    fn element_size(&self) -> PyResult<usize> {
        let dtype = self.tensor.dtype();
        dtype.bytes().ok_or_else(|| PyValueError::new_err(format!("an element of {dtype} is {} bits", dtype.bits())))
    }

    /// Bytes of all elements, without the gaps that strides leave.
    #[getter]
    fn nbytes(&self) -> usize {
        self.tensor.size()
    }

    /// True if the elements are in C order without gaps.
    #[getter]
    fn is_contiguous(&self) -> bool {
        self.tensor.is_contiguous()
    }

    /// True if the first element is aligned for its dtype.
    #[getter]
    fn aligned(&self) -> bool {
        self.tensor.is_aligned()
    }

    /// False only for read-only memory of other libraries.
    #[getter]
    fn is_writable(&self) -> bool {
        self.tensor.storage().is_writable()
    }

    /// True for a view of a mapped file.
    #[getter]
    fn is_mapped(&self) -> bool {
        self.tensor.storage().is_mapped()
    }

    /// The address of the first element.
    fn _data_ptr(&self) -> usize {
        self.tensor.as_ptr() as usize
    }

    /// All memory that the elements are in, as bytes, and the byte at which the first element starts.
    fn _memory(&self) -> BindingResult<(Self, usize)> {
        let storage = self.tensor.storage();
        let bytes = Tensor::contiguous_at(storage.clone(), 0, DType::UInt8, &[storage.len() as i64])?;
        Ok((Self { tensor: bytes }, self.tensor.offset()))
    }

    /// An error if this is a view of a file that is known to have been truncated.
    fn _require_file(&self) -> PyResult<()> {
        require_file(&self.tensor)
    }

    /// The mapped file behind this view, and the byte in it of the first element. None if there is no such file, or if its pages may have been
    /// written to. None also if the file at the path was changed or replaced: then it may not have these elements.
    fn _file_place(&self, py: Python<'_>) -> Option<(PathBuf, usize)> {
        let origin = self.tensor.storage().origin()?;
        let unchanged = detached(py, || origin.is_unchanged()) && !pickle::is_written(py, &self.tensor);
        unchanged.then(|| (origin.absolute.clone(), self.tensor.offset()))
    }

    /// Return an array over the same memory, which it keeps alive. bfloat16 and the 8-bit floats have the dtypes of ml_dtypes.
    ///
    /// Raises:
    ///     ImportError: ml_dtypes is needed and missing.
    ///     UnsupportedError: a packed dtype; view the bytes instead.
    ///
    /// Example:
    ///     >>> max_weights.Buffer.zeros([2], "int8").to_numpy()
    ///     array([0, 0], dtype=int8)
    fn to_numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        package::TO_NUMPY.get(slf.py())?.call1((slf,))
    }

    /// Return the array that `to_numpy` returns.
    ///
    /// Example:
    ///     >>> max_weights.Buffer.zeros([2], "int8").numpy()
    ///     array([0, 0], dtype=int8)
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::to_numpy(slf)
    }

    /// Return a torch tensor over the same memory, which it keeps alive.
    ///
    /// Raises:
    ///     ImportError: torch is missing.
    ///
    /// Example:
    ///     >>> max_weights.Buffer.zeros([2], "float32").torch()
    ///     tensor([0., 0.])
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        package::TO_TORCH.get(slf.py())?.call1((slf,))
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        package::ARRAY.get(slf.py())?.call1((slf, dtype, copy))
    }

    /// Return this tensor on a device: itself if it is already there, else a contiguous copy. For a list of devices, a list.
    ///
    /// Args:
    ///     device: `cpu`, `cuda` (torch's current device, or the first), `cuda:1`, or what names one (docs/gpu.md); or several.
    ///
    /// Raises:
    ///     DeviceError: no such device, too little memory there, or a copy that failed.
    ///     FileChangedError: the file of a mapped tensor was truncated.
    ///
    /// Example:
    ///     >>> max_weights.Buffer.zeros([2], "float32").to("cpu").is_host
    ///     True
    fn to<'py>(slf: Bound<'py, Self>, device: &Bound<'py, PyAny>) -> BindingResult<Bound<'py, PyAny>> {
        if device.is_instance_of::<PyList>() || device.is_instance_of::<PyTuple>() {
            return Ok(place::to_each(&slf, device)?.into_any());
        }
        Ok(place::to(slf, place::device_from_python(device)?)?.into_any())
    }

    /// Return a contiguous copy in its own memory, which no change of the file can reach.
    ///
    /// Args:
    ///     device: Where; default: where this tensor is.
    ///
    /// Raises:
    ///     MemoryError: there is not enough memory.
    ///     DeviceError: no such device, too little memory there, or a copy that failed.
    ///
    /// Example:
    ///     >>> weights.lm_head.weight.data().to_buffer().copy().is_mapped
    ///     False
    #[pyo3(signature = (device=None))]
    fn copy(&self, py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> BindingResult<Self> {
        let place = device.map_or(Ok(self.tensor.device()), place::device_from_python)?;
        Ok(Self { tensor: place::copy(py, &self.tensor, place)? })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> BindingResult<Bound<'py, PyTuple>> {
        pickle::reduce_buffer(py, &self.tensor)
    }

    fn __copy__(&self) -> Self {
        self.clone()
    }

    fn __deepcopy__(&self, py: Python<'_>, _memo: &Bound<'_, PyAny>) -> BindingResult<Self> {
        self.copy(py, None)
    }

    /// Return the elements as another dtype, by the rules of docs/dtypes.md; the tensor itself if it already has the dtype.
    ///
    /// Floats round once to the nearest even, denormals are kept; too large a value becomes infinity, or NaN where
    /// there is none; floats become integers by truncation with saturation, NaN becomes 0. Runs on all cores with the
    /// interpreter released, and stops on Ctrl-C. A tensor on a GPU is converted there, to the same bits (docs/gpu.md).
    ///
    /// Args:
    ///     dtype: The dtype of the result.
    ///     saturate: Give the largest finite value instead of infinity or NaN.
    ///     out: A contiguous Buffer, array or DLPack tensor of this shape and the dtype, to write to.
    ///
    /// Raises:
    ///     UnsupportedError: from or to complex64.
    ///     ValueError: `out` does not fit, cannot be written in place, or overlaps this tensor.
    ///     FileChangedError: the file of a mapped tensor was truncated.
    ///     DeviceError: a strided tensor on a GPU, too little memory there, or a kernel that failed.
    ///
    /// Example:
    ///     >>> max_weights.Buffer.scalar(2.5, "float32").astype("int8").item()
    ///     2
    #[pyo3(signature = (dtype, *, saturate=false, out=None))]
    fn astype<'py>(
        slf: Bound<'py, Self>,
        dtype: &Bound<'py, PyAny>,
        saturate: bool,
        out: Option<&Bound<'py, PyAny>>,
    ) -> BindingResult<Bound<'py, Self>> {
        out::astype(slf, dtype_from_python(dtype)?, saturate, out)
    }

    /// Write the elements of another tensor to this one, which must be contiguous. From itself, there is nothing to write.
    ///
    /// Args:
    ///     src: A Buffer, array or DLPack tensor of the same dtype and number of elements.
    ///
    /// Raises:
    ///     ValueError: another dtype or size, or memory that cannot be written to, or that both share.
    ///
    /// Example:
    ///     >>> max_weights.Buffer.zeros([3], "int8").inplace_copy_from(np.ones(3, "int8"))
    fn inplace_copy_from(slf: &Bound<'_, Self>, src: &Bound<'_, PyAny>) -> BindingResult<()> {
        out::copy_from(slf, src)
    }

    /// Start to read the bytes of this view of a mapped file, and only those.
    ///
    /// Does nothing to other tensors. The first use of a view reads what is around it as well, as far as the disk's read-ahead goes. For parts of a
    /// file, such as the rows of one rank, this reads less and sooner.
    ///
    /// Returns:
    ///     The view itself.
    ///
    /// Example:
    ///     >>> weights.lm_head.weight.data().to_buffer()[:2].prefetch().shape
    ///     (2, 8)
    fn prefetch<'py>(slf: &Bound<'py, Self>) -> BindingResult<Bound<'py, Self>> {
        let tensor = &slf.get().tensor;
        detached(slf.py(), || tensor.prefetch(&interrupt))?;
        Ok(slf.clone())
    }

    /// Return a contiguous copy in its own memory, also of what is contiguous: writing to it never changes this tensor.
    ///
    /// Raises:
    ///     MemoryError: there is not enough memory.
    ///     FileChangedError: the file of a mapped tensor was truncated.
    ///
    /// Example:
    ///     >>> max_weights.Buffer.zeros([2, 3], "int8")[:, 1].contiguous().strides
    ///     (1,)
    fn contiguous(&self, py: Python<'_>) -> BindingResult<Self> {
        Ok(Self { tensor: place::copy(py, &self.tensor, self.tensor.device())? })
    }

    /// This tensor if it is contiguous and aligned, else a copy that is: for read-only use.
    fn _contiguous(&self, py: Python<'_>) -> BindingResult<Self> {
        Ok(Self { tensor: detached(py, || self.tensor.contiguous(&interrupt))? })
    }

    /// Return the same bytes as elements of another dtype and shape.
    ///
    /// Args:
    ///     dtype: The dtype.
    ///     shape: The shape; default: this one, its last dimension scaled by the sizes of the elements.
    ///
    /// Raises:
    ///     ValueError: the bytes do not fit, or are not contiguous.
    ///
    /// Example:
    ///     >>> max_weights.Buffer.zeros([2, 4], "uint8").view("float32").shape
    ///     (2, 1)
    #[pyo3(signature = (dtype, shape=None))]
    fn view(&self, dtype: &Bound<'_, PyAny>, shape: Option<PythonSequence<i64>>) -> BindingResult<Self> {
        let shape = shape.as_ref().map(|shape| &*shape.0);
        Ok(Self { tensor: self.tensor.view(dtype_from_python(dtype)?, shape)? })
    }

    /// Return the value of a tensor of one element.
    ///
    /// Raises:
    ///     ValueError: it has more or fewer.
    ///
    /// Example:
    ///     >>> max_weights.Buffer.scalar(1.5, "float32").item()
    ///     1.5
    fn item<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        numbers::item(slf)
    }

    fn __int__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().get_type::<PyInt>().call1((numbers::number(slf)?,))
    }

    fn __float__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().get_type::<PyFloat>().call1((numbers::number(slf)?,))
    }

    fn __complex__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().get_type::<PyComplex>().call1((numbers::number(slf)?,))
    }

    fn __index__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        numbers::index(slf)
    }

    /// A view by NumPy's basic indexing: integers, slices, `...`, `None`.
    ///
    /// Raises:
    ///     IndexError: out of bounds, or too many indices.
    ///     TypeError: advanced indexing.
    fn __getitem__(&self, key: &Bound<'_, PyAny>) -> BindingResult<Self> {
        Ok(Self { tensor: self.tensor.index(&index_from_python(key)?)? })
    }

    fn __setitem__<'py>(slf: &Bound<'py, Self>, key: &Bound<'py, PyAny>, value: &Bound<'py, PyAny>) -> PyResult<()> {
        package::ASSIGN.get(slf.py())?.call1((slf, key, value)).map(drop)
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.tensor.shape().first();
        first.map(|&dim| dim as usize).ok_or_else(|| PyTypeError::new_err("len() of a tensor of rank 0"))
    }

    fn __bool__(slf: &Bound<'_, Self>) -> PyResult<bool> {
        numbers::truth(slf)
    }

    /// Equality is identity, and there is no hash, as for all mutable types.
    fn __eq__(&self, py: Python<'_>, _other: &Bound<'_, PyAny>) -> Py<PyAny> {
        py.NotImplemented()
    }

    /// True if an element equals the value, as in NumPy.
    fn __contains__<'py>(slf: &Bound<'py, Self>, value: &Bound<'py, PyAny>) -> PyResult<bool> {
        package::CONTAINS.get(slf.py())?.call1((slf, value))?.extract()
    }

    fn __repr__(&self) -> String {
        format!("Buffer({:?})", self.tensor.shape())
    }

    fn __str__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        package::TEXT.get(slf.py())?.call1((slf,))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        package::BUFFER_HTML.get(slf.py())?.call1((slf,))
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device_of(&self.tensor)
    }

    /// A DLPack capsule, versioned if the consumer asks for version 1 or later.
    ///
    /// A tensor on a GPU is ready on the consumer's stream, which waits for it there; `dl_device=(1, 0)` copies it to the host.
    ///
    /// Raises:
    ///     BufferError: a stream that cannot be, another device, elements that DLPack cannot describe, or strides that go
    ///         backward, over which torch may abort the process.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> BindingResult<Bound<'py, PyCapsule>> {
        dlpack::answer(py, &self.tensor, stream, max_version, dl_device, copy)
    }

    /// Fills a view for the buffer protocol.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: Python passes a view that is ours to fill.
        unsafe { buffer_protocol::export(slf, view, flags) }
    }

    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: a view that was filled above, which Python releases once.
        unsafe { buffer_protocol::release(view) }
    }
}
