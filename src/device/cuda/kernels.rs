//! The kernels, and their launch.
//!
//! `kernels.ptx` contains all kernels. A device compiles one on first use, which takes some milliseconds; all at once would take seconds. The driver
//! caches compiled kernels on disk. `build.rs` compresses the file.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::PoisonError;

use once_cell::race::OnceBox;

use super::driver::{DeviceAddress, DeviceStream, Entered, Function};
use crate::cast::{description, is_supported, require_scalable};
use crate::device::Blocks;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::quant::Encoding;
use crate::sync::Mutex;

/// The output of tools/build_kernels.py, deflated.
const PTX: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.ptx.deflate"));
/// The text before the name of each kernel.
const ENTRY: &str = ".visible .entry ";
/// Threads per block.
const THREADS: u32 = 256;
/// About the bytes that a thread reads or writes: enough to hide its start, and few enough to occupy all multiprocessors.
const PER_THREAD: usize = 32;

/// The PTX of all kernels by name, as ranges of lines.
struct Texts {
    head: &'static str,
    by_name: HashMap<&'static str, &'static str>,
}

fn texts() -> &'static Texts {
    // If two threads inflate it at once, one result is kept, and the other is freed.
    static TEXT: OnceBox<String> = OnceBox::new();
    static TEXTS: OnceBox<Texts> = OnceBox::new();
    TEXTS.get_or_init(|| {
        let inflated = || miniz_oxide::inflate::decompress_to_vec(PTX).unwrap_or_default();
        let text = TEXT.get_or_init(|| Box::new(String::from_utf8(inflated()).unwrap_or_default()));
        let (head, entries) = text.split_at(text.find(ENTRY).unwrap_or(text.len()));
        let mut by_name = HashMap::new();
        for text in entries.split(ENTRY).skip(1) {
            by_name.insert(text.split('(').next().unwrap_or_default(), text);
        }
        Box::new(Texts { head, by_name })
    })
}

/// The text of a module with one kernel, preceded by the tables that it reads.
fn module_of(name: &str) -> String {
    let Texts { head, by_name } = texts();
    let text = by_name.get(name).copied().unwrap_or_default();
    let is_read = |line: &&str| {
        let table = line.strip_prefix(".global").and_then(|rest| rest.split('[').next()?.split(' ').next_back());
        table.is_none_or(|table| text.contains(table))
    };
    let head: String = head.split_inclusive('\n').filter(is_read).collect();
    format!("{head}{ENTRY}{text}")
}

/// An additional parameter of a kernel: the words of its value.
type Parameter = Vec<u64>;

/// A kernel and its parameters. It converts elements, or blocks of elements, one to one.
#[derive(Debug, Clone)]
pub(crate) struct DeviceKernel {
    name: &'static str,
    /// The bits of an input element or block, and of its output.
    bits: (usize, usize),
    more: Vec<Parameter>,
}

impl DeviceKernel {
    /// The kernel of this name; `None` if it does not exist.
    fn named(name: &str, bits: (usize, usize), more: Vec<Parameter>) -> Option<Self> {
        let (name, _) = texts().by_name.get_key_value(name)?;
        Some(Self { name, bits, more })
    }

    /// The kernel that converts elements of `from` to `to` like [`crate::cast`], if it exists. It counts elements.
    pub(crate) fn cast(from: DType, to: DType, saturate: bool) -> Option<Self> {
        if from == to || !is_supported(from, to) {
            return None;
        }
        let (bits, saturate) = ((from.bits(), to.bits()), vec![saturate.into()]);
        Self::named(&format!("cast_{}_{}", label(from), label(to)), bits, vec![saturate.clone()])
            .or_else(|| Self::named("cast_any", bits, vec![vec![description(from)], vec![description(to)], saturate]))
    }

    /// The kernel that multiplies elements of `from` by the scales of their blocks like [`crate::cast::scale_block_rows`], if it exists. It counts
    /// elements, and also reads the scales.
    pub(crate) fn scale(from: DType, to: DType, blocks: &Blocks, saturate: bool) -> Option<Self> {
        use DType::{BFloat16, Float8E4M3Fn, Float8E8M0Fnu, Float32};
        let Blocks { scales_dtype, rows, cols, block } = *blocks;
        if require_scalable(from, scales_dtype, to).is_err() {
            return None;
        }
        // If matrices end at a block boundary, their blocks are numbered continuously, and the kernel needs no row count.
        let rows = if rows.is_multiple_of(block.0) { 0 } else { rows };
        let size = [rows, cols, block.0, block.1].map(|size| size as u64);
        let more = vec![vec![description(scales_dtype)], size.to_vec(), vec![saturate.into()]];
        let bits = (from.bits(), to.bits());
        let own = matches!(scales_dtype, Float32 | BFloat16 | Float8E8M0Fnu | Float8E4M3Fn)
            .then(|| Self::named(&format!("scale_{}_{}", label(from), label(to)), bits, more.clone()));
        own.flatten().or_else(|| {
            let formats = [from, to].map(|dtype| vec![description(dtype)]);
            Self::named("scale_any", bits, [more, formats.to_vec()].concat())
        })
    }

    /// The kernel that decodes packed blocks to elements of `to` like [`crate::quant`], if it exists. It counts blocks.
    pub(crate) fn dequantize(encoding: Encoding, to: DType) -> Option<Self> {
        let bits = (encoding.bytes_per_block() * 8, encoding.elements_per_block() * to.bits());
        Self::named(&format!("dequantize_{}_{}", encoding.name().to_lowercase(), label(to)), bits, Vec::new())
    }

    /// The kernel with `len` bytes at an address as an additional input.
    pub(super) fn reading(&self, start: DeviceAddress, len: usize) -> Self {
        let mut more = self.more.clone();
        more.insert(0, vec![start, len as u64]);
        Self { more, ..self.clone() }
    }

    /// The bytes of input and output for `count` elements or blocks; `None` if they overflow.
    pub(crate) fn bytes(&self, count: usize) -> Option<(usize, usize)> {
        let bytes = |bits: usize| count.checked_mul(bits).map(|bits| bits.div_ceil(8));
        Some((bytes(self.bits.0)?, bytes(self.bits.1)?))
    }
}

/// The name of a dtype in the names of kernels.
fn label(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bool",
        DType::Complex64 => "c64",
        DType::Float4E2M1Fn => "e2m1fn",
        DType::Float6E2M3Fn => "e2m3fn",
        DType::Float6E3M2Fn => "e3m2fn",
        DType::Float8E8M0Fnu => "e8m0fnu",
        DType::Float8E4M3Fn => "e4m3fn",
        DType::Float8E4M3Fnuz => "e4m3fnuz",
        DType::Float8E5M2 => "e5m2",
        DType::Float8E5M2Fnuz => "e5m2fnuz",
        DType::Float16 => "f16",
        DType::BFloat16 => "bf16",
        DType::Float32 => "f32",
        DType::Float64 => "f64",
        DType::UInt8 => "u8",
        DType::Int8 => "i8",
        DType::UInt16 => "u16",
        DType::Int16 => "i16",
        DType::UInt32 => "u32",
        DType::Int32 => "i32",
        DType::UInt64 => "u64",
        DType::Int64 => "i64",
        _ => dtype.name(), // no kernel has this dtype in its name yet
    }
}

/// The kernels compiled for a device.
#[derive(Debug, Default)]
pub(super) struct CompiledKernels(Mutex<HashMap<&'static str, Function>>);

impl CompiledKernels {
    /// Queues a kernel for `count` elements or blocks.
    ///
    /// # Safety
    /// Both addresses must have the bytes of [`DeviceKernel::bytes`], and additional inputs must be valid. All must stay valid and unused by others until
    /// the kernel is done. Alignment is not required, but 16 bytes at both addresses are faster.
    pub(super) unsafe fn launch(
        &self,
        entered: &Entered,
        stream: &DeviceStream,
        kernel: &DeviceKernel,
        (from, to): (DeviceAddress, DeviceAddress),
        count: usize,
    ) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let function = self.function(entered, kernel.name)?;
        let (read, written) = kernel.bytes(count).unwrap_or((usize::MAX, usize::MAX));
        // Above the maximum number of blocks, each thread does several parts.
        let blocks = read.max(written).div_ceil(PER_THREAD * THREADS as usize).min(i32::MAX as usize) as u32;
        let mut words: Vec<Parameter> = vec![vec![from], vec![to], vec![count as u64]];
        words.extend(kernel.more.iter().cloned());
        let mut parameters: Vec<_> = words.iter_mut().map(|word| word.as_mut_ptr().cast()).collect();
        // SAFETY: every kernel takes both addresses, the count, and the parameters in `Kernel`. The caller guarantees the memory.
        unsafe { entered.launch(stream, &function, (blocks, THREADS), &mut parameters) }
            .map_err(|error| of_kernel(error, kernel.name))
    }

    /// Compiles a kernel ahead of its first launch.
    pub(super) fn compile(&self, entered: &Entered, kernel: &DeviceKernel) -> Result<()> {
        self.function(entered, kernel.name).map(drop)
    }

    fn function(&self, entered: &Entered, name: &'static str) -> Result<Function> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = kept.get(name) {
            return Ok(*function);
        }
        let (Ok(ptx), Ok(named)) = (CString::new(module_of(name)), CString::new(name)) else {
            return Err(Error::Device(format!("the source of kernel {name} has a NUL byte")));
        };
        let function = entered.function(&ptx, &named).map_err(|error| of_kernel(error, name))?;
        kept.insert(name, function);
        Ok(function)
    }
}

fn of_kernel(error: Error, name: &str) -> Error {
    match error {
        Error::Device(cause) => Error::Device(format!("kernel {name}: {cause}")),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_has_the_kernels_of_the_file_in_a_fifth_of_its_size() {
        let file = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/device/kernels/kernels.ptx"));
        let file = file.expect("the kernels");
        assert_eq!(miniz_oxide::inflate::decompress_to_vec(PTX).expect("deflated"), file.as_bytes());
        assert!(PTX.len() * 5 < file.len());
        assert_eq!(texts().by_name.len(), file.matches(ENTRY).count());
    }

    #[test]
    fn every_encoding_has_a_kernel_for_every_target() {
        for encoding in Encoding::all() {
            for to in [DType::Float32, DType::Float16, DType::BFloat16] {
                assert!(DeviceKernel::dequantize(encoding, to).is_some(), "{encoding} to {to}");
            }
        }
    }

    #[test]
    fn a_module_has_one_kernel_and_the_tables_that_it_reads() {
        for name in texts().by_name.keys() {
            let module = module_of(name);
            assert!(module.starts_with(".version") && module.contains(".target"));
            assert_eq!(module.matches(ENTRY).count(), 1);
            let grid = name.strip_prefix("dequantize_iq").filter(|rest| !rest.starts_with('4'));
            assert_eq!(module.matches(".global .align").count(), usize::from(grid.is_some()), "{name}");
        }
    }
}
