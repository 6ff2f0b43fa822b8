//! Tensors on a device, with the core alone, on the stand-in driver: every route delivers the bytes of the file, and nothing is leaked.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use cuda::client::StandIn;
use max_weights::buffer::Buffer;
use max_weights::checkpoint::{Backend, Checkpoint, OpenOptions};
use max_weights::device::Device;
use max_weights::dtype::DType;
use max_weights::error::{Error, Result};
use max_weights::load::{LoadOptions, LoadPlan, TensorMemory, TensorRequest};
use max_weights::workers::uninterrupted;

/// A large f16 tensor, small ones of three dtypes, and one of no bytes.
fn file(folder: &Path) -> PathBuf {
    let sizes =
        [("large", "F16", 9 << 20), ("a", "F32", 400), ("b", "BF16", 6), ("none", "F32", 0), ("wide", "F16", 300_000)];
    let (mut entries, mut at) = (Vec::new(), 0);
    for (name, dtype, size) in sizes {
        let shape = size / if dtype == "F32" { 4 } else { 2 };
        entries
            .push(format!(r#""{name}":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{at},{}]}}"#, at + size));
        at += size;
    }
    let header = format!("{{{}}}", entries.join(","));
    let header = format!("{header:width$}", width = header.len().next_multiple_of(8));
    let data: Vec<u8> = (0..at as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let path = folder.join("model.safetensors");
    std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()).unwrap();
    path
}

fn load(path: &Path, device: Device, dtype: Option<DType>, backend: Backend) -> Result<Vec<Buffer>> {
    let checkpoint = Checkpoint::open(&[path.to_path_buf()], &OpenOptions::default())?;
    let catalog = checkpoint.catalog();
    let requests =
        (0..catalog.table().len()).map(|number| Ok(TensorRequest { device, ..catalog.tensor_request(number, dtype)? }));
    let options = LoadOptions { backend, ..LoadOptions::default() };
    let layout = LoadPlan::new(&checkpoint, requests.collect::<Result<Vec<_>>>()?, TensorMemory::Own, &[], &options)?;
    layout.run(&checkpoint, Vec::new(), &AtomicU64::new(0), &uninterrupted).map(|(loaded, _)| loaded)
}

// One test, because the stand-in counts for the whole process.
#[test]
fn what_arrives_is_what_the_cpu_has_and_nothing_is_left() {
    let stand_in = StandIn::of_this_process().expect("the stand-in driver is built beside this test");
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path());
    for dtype in [None, Some(DType::Float32)] {
        let expected = load(&path, Device::Cpu, dtype, Backend::Read).unwrap();
        for backend in [Backend::Auto, Backend::Map, Backend::Read, Backend::Direct] {
            for index in [0, 1] {
                let there = load(&path, Device::Cuda(index), dtype, backend).unwrap();
                for (tensor, expected) in there.iter().zip(&expected) {
                    assert_eq!(tensor.device(), Device::Cuda(index));
                    let elsewhere = tensor.to(Device::Cuda(1 - index), &uninterrupted).unwrap();
                    let back = elsewhere.to(Device::Cpu, &uninterrupted).unwrap();
                    assert_eq!((back.bytes(), back.shape()), (expected.bytes(), expected.shape()));
                }
            }
        }
    }
    for call in ["cuMemAlloc_v2", "cuMemHostRegister_v2", "cuMemcpyHtoDAsync_v2", "cuEventRecord", "cuStreamWaitEvent"]
    {
        for at in 1..4 {
            stand_in.fail(call, at, 999).unwrap();
            match load(&path, Device::Cuda(0), None, Backend::Map) {
                Err(Error::Device(cause)) => assert!(cause.contains(call), "{cause}"),
                Err(other) => panic!("{other}"),
                Ok(_) => {} // fewer calls were made, or memory of the driver's is taken where ours cannot be pinned
            }
        }
    }
    max_weights::memory::release_memory();
    let counters = stand_in.counters();
    assert_eq!(
        (counters.device_bytes, counters.pinned_bytes, counters.registered_ranges, counters.events),
        (0, 0, 0, 0)
    );
    // Memory that cannot be unpinned stays, whether the system gave it or the driver: a device may still use it.
    for call in ["cuMemHostUnregister", "cuMemFreeHost"] {
        stand_in.fail(call, 1, 999).unwrap();
    }
    drop(load(&path, Device::Cuda(0), None, Backend::Read));
    max_weights::memory::release_memory();
    let left = stand_in.counters();
    assert!(left.registered_ranges == 1 || left.pinned_bytes > 0, "{left:?}");
    assert_eq!(stand_in.violations(), Vec::<String>::new());
}
