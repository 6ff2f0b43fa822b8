//! A stand-in for CUDA's driver library (`libcuda.so`). It lets the unchanged GPU code run in tests on machines without a GPU.
//!
//! A process that is started with `LD_LIBRARY_PATH` on the folder of the `libcuda.so` that this crate is built as, takes it for the driver's: cudarc
//! with dynamic loading opens it by this name. It has the functions of the driver that max_weights calls, with the C ABI of CUDA 12, and devices that are threads
//! and memory of the host.
//!
//! # How a test starts a process with it
//!
//! This crate is a development dependency of the core crate, so that Cargo builds `libcuda.so` into the folder of the tests, `target/*/deps`. That
//! folder is in the `LD_LIBRARY_PATH` of the tests that Cargo runs, after `target/*`, where `cargo build` may have left an older one. Tests with
//! different settings or counters run in a separate process:
//!
//! ```no_run
//! # fn main() -> std::io::Result<()> {
//! let program = std::env::current_exe()?;
//! let folder = program.parent().expect("a folder");
//! let mut test = std::process::Command::new(&program);
//! test.args(["--exact", "the_name_of_the_test", "--nocapture"]).env("CHILD", "1");
//! test.env("LD_LIBRARY_PATH", folder).env("FAKE_CUDA_MEMORY", "1000000").env("FAKE_CUDA_FAIL", "cuMemHostAlloc:2=2");
//! assert!(test.status()?.success());
//! # Ok(())
//! # }
//! ```
//!
//! A test of a machine without a driver sets `LD_LIBRARY_PATH` to an empty folder. Tests in Python start `sys.executable` with `LD_LIBRARY_PATH` on the folder
//! that `cargo build --package fake-cuda` fills, `target/debug`. Nothing is found under the name `libcuda.so.1`, which other libraries open.
//!
//! # What it does as a driver does
//!
//! - A stream is a thread that executes what was issued to it in order, and not before `FAKE_CUDA_DELAY` microseconds have passed. The default
//!   stream and blocking streams wait for each other; streams made with `CU_STREAM_NON_BLOCKING` are on their own.
//! - A copy from pinned or registered memory reads its source when it is executed. One from other host memory has read it when the call returns, and
//!   one into such memory is done when the call returns. The target of a copy to pinned memory has other bytes until the copy is executed.
//! - Device memory has addresses that the host cannot access: an access ends the process. The bytes are elsewhere. An address is only reused after
//!   all others.
//! - A module is PTX, in which kernels are found by their names. The same source, `src/device/kernels`, runs here; `build.rs` compiles it for the
//!   host. A thread of the device is a call, and the calls run sequentially. Operations that are undefined on a device, such as a shift by too much,
//!   and a misaligned address end the process. Tests can register additional kernels.
//! - Memory and pinned memory are limited. New memory up to 1 MiB is not zeroed.
//! - In a forked child every call fails with `CUDA_ERROR_NOT_INITIALIZED`. At the end of the process it fails with `CUDA_ERROR_DEINITIALIZED`.
//! - A failure during execution fails the context. Every later call in it returns that result. Unlike with the driver, memory, streams and events
//!   can still be given back, so that tests see that everything is.
//!
//! # What it finds
//!
//! A violation is noted, counted, and does not fail the call:
//!
//! - The source of a copy changed before its end. The buffer was used again too early.
//! - Two streams use the same memory without an order, and one of them writes it. Only promised orders count, so every missing event is found.
//! - Memory is freed or unregistered before the host knows that its users are done. The calls are `cuMemFree_v2`, `cuMemFreeHost` and
//!   `cuMemHostUnregister`.
//! - `cuMemFreeAsync` frees memory without an order of streams after its users.
//! - A kernel uses memory that is not allocated. Its launch fails, too.
//! - A context is released for the last time while objects in it are alive.
//!
//! The host knows that an operation is done after `cuStreamSynchronize`, `cuEventSynchronize`, `cuCtxSynchronize`, a query that returns success, or
//! when a later function of `cuLaunchHostFunc` was called. All threads of the host share this knowledge.
//!
//! # Settings
//!
//! Environment variables, read at the first `cuInit`:
//!
//! | variable | what | usual |
//! |---|---|---|
//! | `FAKE_CUDA_DEVICES` | how many devices; 0: `cuInit` returns that none exists | 2 |
//! | `FAKE_CUDA_MEMORY` | bytes of each | 16 GiB |
//! | `FAKE_CUDA_PINNED` | bytes that can be pinned or registered at a time | 8 GiB |
//! | `FAKE_CUDA_GBPS` | speed of each device's link, in 10⁹ bytes a second and direction; 0: as fast as it goes | 0 |
//! | `FAKE_CUDA_DELAY` | microseconds from the call to the execution, at the least | 100 |
//! | `FAKE_CUDA_CHECK` | how much of a source is compared: `none`, `sampled` (all up to 1 MiB, 1024 places of more), `full` | sampled |
//! | `FAKE_CUDA_BYTES` | 0: copies with pinned memory take their time and move nothing, and kernels compute nothing (for benches) | 1 |
//! | `FAKE_CUDA_ATTRIBUTES` | attributes of the devices, `NUMBER=VALUE` separated by commas | an H200's |
//! | `FAKE_CUDA_FAIL` | failures, separated by commas: `cuMemAlloc_v2:3=2` makes the third call return 2; `cuMemcpyHtoDAsync_v2@1=700` makes the execution of the first one fail with 700 | none |
//! | `FAKE_CUDA_REPORT` | a path: the counters and violations are written there as JSON when the process exits | none |
//!
//! # In the process
//!
//! [`fake_cuda_counters`](control::fake_cuda_counters), [`fake_cuda_more_counters`](control::fake_cuda_more_counters),
//! [`fake_cuda_violation`](control::fake_cuda_violation), [`fake_cuda_reset`](control::fake_cuda_reset), [`fake_cuda_fail`](control::fake_cuda_fail),
//! [`fake_cuda_fail_later`](control::fake_cuda_fail_later) and [`fake_cuda_register_kernel`](kernels::fake_cuda_register_kernel) are exported in
//! addition to the driver's functions. A copy of this crate that is linked into a test has a separate state: [`client::StandIn`] finds the functions
//! of the library that the process has open.
#![allow(unsafe_code, non_snake_case)] // the driver's C functions, by their names

mod arena;
pub mod client;
mod compiled;
pub mod contexts;
pub mod control;
pub mod copies;
pub mod devices;
pub mod entry;
pub mod events;
mod failures;
pub mod kernels;
mod lane;
mod link;
pub mod lookup;
pub mod memory;
mod order;
mod regions;
pub mod result;
mod settings;
mod state;
pub mod streams;
