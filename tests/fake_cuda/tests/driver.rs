//! Devices, limits, failures, kernels, the end of the process, and the library as a program finds it.
#![allow(unsafe_code, clippy::items_after_statements)]

#[macro_use]
mod support;

use std::ffi::{CStr, c_void};
use std::os::unix::process::ExitStatusExt;
use std::ptr;
use std::time::Instant;

use cuda::client::StandIn;
use cuda::kernels::{Launch, fake_cuda_register_kernel};
use support::*;

const LENGTH: usize = 100_000;

#[test]
fn what_is_given_back_is_no_longer_counted() {
    if !apart("what_is_given_back_is_no_longer_counted", &[]) {
        return;
    }
    begin(1);
    let (stream, event, memory, source) = (stream(), event(), device_memory(LENGTH), pinned(LENGTH));
    let mut mine = vec![0_u8; 3 * LENGTH];
    cu!(cuMemHostRegister_v2(mine.as_mut_ptr().cast(), mine.len(), 0));
    cu!(712: cuMemHostRegister_v2(mine[LENGTH..].as_mut_ptr().cast(), LENGTH, 0));
    cu!(cuMemcpyHtoDAsync_v2(memory, source.as_ptr().cast(), LENGTH, stream));
    cu!(cuEventRecord(event, stream));
    cu!(cuEventSynchronize(event));
    let alive = counters();
    assert_eq!((alive.device_bytes, alive.pinned_bytes, alive.registered_ranges), (LENGTH as u64, LENGTH as u64, 1));
    assert_eq!((alive.streams, alive.events, alive.contexts), (1, 1, 1));
    assert_eq!(alive.bytes_to_device, LENGTH as u64);
    assert!(alive.copy_nanoseconds > 0);
    let (mut free, mut total) = (0, 0);
    cu!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
    assert_eq!((free, total), ((16 << 30) - LENGTH, 16 << 30));

    cu!(cuMemFree_v2(memory));
    cu!(1: cuMemFree_v2(memory));
    cu!(cuMemFreeHost(source.as_mut_ptr().cast()));
    cu!(cuMemHostUnregister(mine.as_mut_ptr().cast()));
    cu!(713: cuMemHostUnregister(mine.as_mut_ptr().cast()));
    cu!(cuEventDestroy_v2(event));
    cu!(cuStreamDestroy_v2(stream));
    cu!(cuDevicePrimaryCtxRelease_v2(1));
    cu!(201: cuDevicePrimaryCtxRelease_v2(1));
    fake_cuda_reset();
    assert_eq!(counters(), Counters::default());
    let most = more_counters();
    assert_eq!(
        (most.most_pinned_bytes, most.most_device_bytes, most.unfinished),
        (0, 0, 0),
        "reset, and nothing is alive"
    );
}

#[test]
fn a_context_that_is_released_with_something_alive_is_found() {
    if !apart("a_context_that_is_released_with_something_alive_is_found", &[]) {
        return;
    }
    begin(0);
    let (_, _, memory) = (stream(), event(), device_memory(LENGTH));
    cu!(cuDevicePrimaryCtxRelease_v2(0));
    assert!(
        violations()[0].contains("1 allocations or registered ranges, 1 streams and 1 events alive"),
        "{:?}",
        violations()
    );
    cu!(201: cuMemFree_v2(memory));
    let left = counters();
    assert_eq!((left.device_bytes, left.streams, left.events, left.contexts), (0, 0, 0, 0));
}

#[test]
fn memory_is_limited() {
    let settings = [("FAKE_CUDA_MEMORY", "1000000"), ("FAKE_CUDA_PINNED", "500000"), ("FAKE_CUDA_DEVICES", "3")];
    if !apart("memory_is_limited", &settings) {
        return;
    }
    begin(2);
    let mut count = 0;
    cu!(cuDeviceGetCount(&raw mut count));
    assert_eq!(count, 3);
    let (mut address, mut host) = (0, ptr::null_mut());
    cu!(1: cuMemAlloc_v2(&raw mut address, 0));
    cu!(2: cuMemAlloc_v2(&raw mut address, 1_000_001));
    cu!(cuMemAlloc_v2(&raw mut address, 1_000_000));
    cu!(2: cuMemAllocAsync(&raw mut address, 1, stream()));
    cu!(2: cuMemHostAlloc(&raw mut host, 500_001, 0));
    let pinned = pinned(400_000);
    let mut mine = vec![0_u8; 200_000];
    cu!(2: cuMemHostRegister_v2(mine.as_mut_ptr().cast(), mine.len(), 0));
    cu!(cuMemFreeHost(pinned.as_mut_ptr().cast()));
    cu!(cuMemHostRegister_v2(mine.as_mut_ptr().cast(), mine.len(), 0));
    let most = more_counters();
    assert_eq!((most.most_device_bytes, most.most_pinned_bytes, most.registered_bytes), (1_000_000, 400_000, 200_000));
}

#[test]
fn memory_that_a_stream_is_about_to_free_is_waited_for() {
    if !apart("memory_that_a_stream_is_about_to_free_is_waited_for", &[("FAKE_CUDA_MEMORY", "1000000")]) {
        return;
    }
    begin(0);
    let (stream, mut one, mut two) = (stream(), 0, 0);
    cu!(cuMemAllocAsync(&raw mut one, 600_000, stream));
    cu!(cuMemFreeAsync(one, stream));
    cu!(1: cuMemsetD8Async(one, 0, 1, stream));
    cu!(cuMemAllocAsync(&raw mut two, 600_000, stream));
    assert!(two > one, "an address is not soon given again");
    assert_eq!(counters().device_bytes, 600_000);
}

#[test]
fn the_host_can_neither_read_nor_write_device_memory() {
    let name = "the_host_can_neither_read_nor_write_device_memory";
    let Some((status, text)) = ended(name, &[]) else {
        begin(0);
        let memory = device_memory(LENGTH) as *const u8;
        // SAFETY: none: this is the fault that ends the process.
        let byte = unsafe { memory.read_volatile() };
        println!("the host has read {byte}");
        return;
    };
    assert!(!text.contains("the host has read"), "{text}");
    assert!(status.signal() == Some(libc::SIGSEGV) || text.contains("AddressSanitizer: SEGV"), "{status:?}\n{text}");
}

#[test]
fn addresses_outside_allocations_are_refused() {
    if !apart("addresses_outside_allocations_are_refused", &[]) {
        return;
    }
    begin(0);
    let (stream, memory, source) = (stream(), device_memory(1000), pinned(1000));
    cu!(1: cuMemcpyHtoDAsync_v2(memory, source.as_ptr().cast(), 1001, stream));
    cu!(1: cuMemcpyHtoDAsync_v2(memory + 999, source.as_ptr().cast(), 2, stream));
    cu!(1: cuMemcpyHtoDAsync_v2(source.as_ptr() as u64, source.as_ptr().cast(), 1, stream));
    cu!(1: cuMemcpyHtoDAsync_v2(memory, memory as *const c_void, 1, stream));
    cu!(1: cuMemsetD8Async(memory + 1000, 0, 1, stream));
    cu!(400: cuMemsetD8Async(memory, 0, 1, 0x1234 as Handle));
    let (mut kind, mut start, mut length, mut device) = (0_u32, 0_u64, 0_usize, -1_i32);
    cu!(cuPointerGetAttribute((&raw mut kind).cast(), 2, memory + 5));
    cu!(cuPointerGetAttribute((&raw mut start).cast(), 11, memory + 5));
    cu!(cuPointerGetAttribute((&raw mut length).cast(), 12, memory + 5));
    cu!(cuPointerGetAttribute((&raw mut device).cast(), 9, memory + 5));
    assert_eq!((kind, start, length, device), (2, memory, 1000, 0));
    cu!(cuPointerGetAttribute((&raw mut kind).cast(), 2, source.as_ptr() as u64));
    assert_eq!(kind, 1);
    cu!(1: cuPointerGetAttribute((&raw mut kind).cast(), 2, (&raw const kind) as u64));
}

#[test]
fn memory_that_cannot_be_written_is_registered_as_such_only() {
    if !apart("memory_that_cannot_be_written_is_registered_as_such_only", &[]) {
        return;
    }
    begin(0);
    // SAFETY: a new anonymous mapping, which nothing else knows.
    let mine =
        unsafe { libc::mmap(ptr::null_mut(), LENGTH, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    cu!(1: cuMemHostRegister_v2(mine, LENGTH, 0));
    cu!(cuMemHostRegister_v2(mine, LENGTH, 8));
    let memory = device_memory(LENGTH);
    cu!(cuMemcpyHtoDAsync_v2(memory, mine, LENGTH, stream()));
    cu!(cuCtxSynchronize());
    assert_eq!(bytes_at(memory, LENGTH), vec![0; LENGTH]);
    cu!(cuMemHostUnregister(mine));
    cu!(1: cuMemHostRegister_v2(mine, 1 << 40, 8));
    assert_eq!(violations(), [""; 0]);
}

#[test]
fn any_call_can_fail() {
    if !apart("any_call_can_fail", &[("FAKE_CUDA_FAIL", "cuMemAlloc_v2:2=2,cuInit:1=999")]) {
        return;
    }
    cu!(999: cuInit(0));
    begin(0);
    let mut address = 0;
    cu!(cuMemAlloc_v2(&raw mut address, 1));
    cu!(2: cuMemAlloc_v2(&raw mut address, 1));
    cu!(cuMemAlloc_v2(&raw mut address, 1));
    cu!(fake_cuda_fail(c"cuStreamSynchronize".as_ptr(), 2, 700));
    let stream = stream();
    cu!(cuStreamSynchronize(stream));
    cu!(700: cuStreamSynchronize(stream));
    cu!(cuStreamSynchronize(stream));
    cu!(1: fake_cuda_fail(c"cuMemAlloc".as_ptr(), 1, 2));
    cu!(1: fake_cuda_fail_later(c"cuMemAlloc_v2".as_ptr(), 1, 2));
    let mut name = ptr::null();
    cu!(cuGetErrorName(700, &raw mut name));
    // SAFETY: a string of the library.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"CUDA_ERROR_ILLEGAL_ADDRESS");
}

#[test]
fn what_fails_later_fails_its_context_and_all_can_be_given_back() {
    // So that all is asked for before the first of it is done.
    if !apart("what_fails_later_fails_its_context_and_all_can_be_given_back", &[("FAKE_CUDA_DELAY", "50000")]) {
        return;
    }
    begin(0);
    let (stream, event, memory, source) = (stream(), event(), device_memory(LENGTH), pinned(LENGTH));
    let mut other = 0;
    cu!(cuMemAllocAsync(&raw mut other, LENGTH, stream));
    cu!(fake_cuda_fail_later(c"cuMemcpyHtoDAsync_v2".as_ptr(), 2, 700));
    source.fill(1);
    cu!(cuMemcpyHtoDAsync_v2(memory, source.as_ptr().cast(), LENGTH, stream));
    cu!(cuMemcpyHtoDAsync_v2(memory, source.as_ptr().cast(), LENGTH, stream));
    cu!(cuMemcpyHtoDAsync_v2(memory, source.as_ptr().cast(), LENGTH, stream));
    cu!(cuEventRecord(event, stream));
    cu!(700: cuEventSynchronize(event));
    cu!(700: cuStreamSynchronize(stream));
    cu!(700: cuMemcpyHtoD_v2(memory, source.as_ptr().cast(), LENGTH));
    cu!(700: cuStreamQuery(stream));
    assert_eq!(counters().bytes_to_device, LENGTH as u64, "the first one");
    cu!(700: cuMemFree_v2(memory));
    cu!(700: cuMemFreeAsync(other, stream));
    cu!(700: cuMemFreeHost(source.as_mut_ptr().cast()));
    cu!(700: cuEventDestroy_v2(event));
    cu!(700: cuStreamDestroy_v2(stream));
    cu!(cuDevicePrimaryCtxRelease_v2(0));
    assert_eq!(violations(), [""; 0]);
    let left = counters();
    assert_eq!((left.device_bytes, left.pinned_bytes, left.streams, left.events, left.contexts), (0, 0, 0, 0, 0));
    begin(0);
    cu!(cuCtxSynchronize());
}

/// Adds a number to each byte.
unsafe extern "C" fn add(launch: *const Launch) {
    // SAFETY: registered with an address, a length and a byte as parameters, which are behind the launch's pointers.
    unsafe {
        let parameters = (*launch).parameters;
        let address = *(*parameters).cast::<u64>();
        let length = *(*parameters.add(1)).cast::<u64>() as usize;
        let number = *(*parameters.add(2)).cast::<u8>();
        let bytes = ((*launch).write)(launch, address, length);
        if !bytes.is_null() {
            for byte in std::slice::from_raw_parts_mut(bytes, length) {
                *byte += number;
            }
        }
    }
}

#[test]
fn kernels_are_functions_of_the_host() {
    if !apart("kernels_are_functions_of_the_host", &[]) {
        return;
    }
    begin(0);
    let (stream, other, source, memory) = (stream(), stream(), pinned(LENGTH), device_memory(LENGTH));
    let (mut module, mut kernel) = (ptr::null_mut(), ptr::null_mut());
    cu!(cuModuleLoadData(&raw mut module, c".visible .entry add(".as_ptr().cast()));
    cu!(500: cuModuleGetFunction(&raw mut kernel, module, c"add".as_ptr()));
    let sizes = [8_usize, 8, 1];
    // SAFETY: a name, three sizes, and a function that takes such parameters.
    assert_eq!(unsafe { fake_cuda_register_kernel(c"add".as_ptr(), Some(add), sizes.as_ptr(), 3) }, 0);
    cu!(cuModuleGetFunction(&raw mut kernel, module, c"add".as_ptr()));
    cu!(500: cuModuleGetFunction(&raw mut kernel, module, c"ad".as_ptr()));
    let launch = |stream: Handle, address: u64| {
        let (mut address, mut length, mut number) = (address, LENGTH as u64, 5_u8);
        let mut parameters: [*mut c_void; 3] =
            [(&raw mut address).cast(), (&raw mut length).cast(), (&raw mut number).cast()];
        cu!(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters.as_mut_ptr(), ptr::null_mut()));
        (address, length, number) = (0, 0, 0); // the launch has copies
        let _ = (address, length, number);
    };
    source.fill(1);
    cu!(cuMemcpyHtoDAsync_v2(memory, source.as_ptr().cast(), LENGTH, stream));
    launch(stream, memory);
    cu!(cuStreamSynchronize(stream));
    assert_eq!(bytes_at(memory, LENGTH), vec![6; LENGTH]);
    assert_eq!((more_counters().kernels, violations().len()), (1, 0));

    cu!(cuMemcpyHtoDAsync_v2(memory, source.as_ptr().cast(), LENGTH, stream));
    launch(other, memory);
    cu!(cuStreamSynchronize(stream));
    cu!(cuStreamSynchronize(other));
    assert!(violations()[0].contains("cuLaunchKernel"), "{:?}", violations());
    launch(stream, memory + 1);
    cu!(719: cuStreamSynchronize(stream));
    assert!(violations()[1].contains("where nothing is allocated"), "{:?}", violations());
    cu!(cuModuleUnload(module));
}

#[test]
fn kernels_of_the_core_run_and_use_no_memory_that_they_may_not() {
    if !apart("kernels_of_the_core_run_and_use_no_memory_that_they_may_not", &[]) {
        return;
    }
    begin(0);
    let (stream, source, from, to) = (stream(), pinned(2), device_memory(2), device_memory(4));
    let (mut module, mut kernel) = (ptr::null_mut(), ptr::null_mut());
    cu!(cuModuleLoadData(&raw mut module, c".visible .entry cast_bf16_f32(".as_ptr().cast()));
    cu!(cuModuleGetFunction(&raw mut kernel, module, c"cast_bf16_f32".as_ptr()));
    let launch = |count: u64| {
        let (mut from, mut to, mut count, mut saturate) = (from, to, count, 0_u32);
        let mut parameters: [*mut c_void; 4] =
            [(&raw mut from).cast(), (&raw mut to).cast(), (&raw mut count).cast(), (&raw mut saturate).cast()];
        cu!(cuLaunchKernel(kernel, 2, 1, 1, 32, 1, 1, 0, stream, parameters.as_mut_ptr(), ptr::null_mut()));
    };
    source.copy_from_slice(&[0x80, 0x3f]); // 1.0
    cu!(cuMemcpyHtoDAsync_v2(from, source.as_ptr().cast(), 2, stream));
    launch(1);
    cu!(cuStreamSynchronize(stream));
    assert_eq!(bytes_at(to, 4), 1_f32.to_le_bytes());
    assert_eq!(violations(), [""; 0]);
    launch(2);
    cu!(719: cuStreamSynchronize(stream));
    assert!(violations()[0].contains("uses 4 bytes"), "{:?}", violations());
    assert!(violations()[1].contains("uses 8 bytes"), "{:?}", violations());
}

#[test]
fn the_link_has_the_speed_that_is_set() {
    if !apart("the_link_has_the_speed_that_is_set", &[("FAKE_CUDA_GBPS", "0.5")]) {
        return;
    }
    begin(0);
    let length = 5_000_000; // 10 ms each
    let (streams, source, memory) = ([stream(), stream()], pinned(length), device_memory(2 * length));
    let (start, end) = (event(), event());
    let begun = Instant::now();
    cu!(cuEventRecord(start, streams[0]));
    for copy in 0..10 {
        let to = memory + (copy % 2 * length) as u64;
        cu!(cuMemcpyHtoDAsync_v2(to, source.as_ptr().cast(), length, streams[copy % 2]));
    }
    cu!(cuEventRecord(end, streams[0]));
    cu!(cuStreamWaitEvent(streams[1], end, 0));
    cu!(cuEventRecord(end, streams[1]));
    cu!(cuCtxSynchronize());
    let seconds = begun.elapsed().as_secs_f64();
    assert!(seconds >= 0.1, "two streams share one link: {seconds} s");
    let busy = counters().copy_nanoseconds as f64 / 1e9;
    assert!((0.1..=seconds).contains(&busy), "{busy} s of {seconds} s");
    let mut milliseconds = 0.0;
    cu!(cuEventElapsedTime_v2(&raw mut milliseconds, start, end));
    assert!((99.0..=1e3 * seconds as f32).contains(&milliseconds), "{milliseconds} ms");
    assert_eq!(violations(), [""; 0]);
}

#[test]
fn copies_that_move_nothing_keep_the_link_busy_for_their_time_alone() {
    let settings = [("FAKE_CUDA_GBPS", "0.5"), ("FAKE_CUDA_BYTES", "0")];
    if !apart("copies_that_move_nothing_keep_the_link_busy_for_their_time_alone", &settings) {
        return;
    }
    begin(0);
    let length = 5_000; // 10 us each, for which no thread sleeps exactly
    let (stream, source, memory) = (stream(), pinned(length), device_memory(length));
    for _ in 0..100 {
        cu!(cuMemcpyHtoDAsync_v2(memory, source.as_ptr().cast(), length, stream));
    }
    cu!(cuStreamSynchronize(stream));
    assert_eq!(counters().copy_nanoseconds, 1_000_000);
    assert_eq!(counters().bytes_to_device, 500_000);
    assert_eq!(violations(), [""; 0]);
}

#[test]
fn a_forked_child_has_no_driver() {
    if !apart("a_forked_child_has_no_driver", &[]) {
        return;
    }
    begin(0);
    let _memory = device_memory(1);
    // SAFETY: the child calls nothing but this library, which takes no lock there, and ends without anything that was registered.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as documented; it returns at once.
        let result = unsafe { cuCtxSynchronize() + 10 * cuInit(0) };
        // SAFETY: ends the child.
        unsafe { libc::_exit(result as i32) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 33, "both say that the driver is not initialised");
    cu!(cuCtxSynchronize());
}

#[test]
fn the_end_of_the_process_is_reported_with_copies_under_way() {
    let name = "the_end_of_the_process_is_reported_with_copies_under_way";
    let path = std::env::temp_dir().join(format!("fake-cuda-{}.json", std::process::id()));
    let settings = [("FAKE_CUDA_REPORT", path.to_str().unwrap()), ("FAKE_CUDA_GBPS", "0.00001")];
    let Some((status, text)) = ended(name, &settings) else {
        begin(0);
        let (stream, source, memory) = (stream(), pinned(LENGTH), device_memory(LENGTH));
        cu!(cuMemcpyHtoDAsync_v2(memory, source.as_ptr().cast(), LENGTH, stream)); // 10 s
        std::process::exit(0);
    };
    assert!(status.success(), "{text}");
    let report = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    for part in [
        "\"device_bytes\": 100000,",
        "\"streams\": 1,",
        "\"unfinished\": 1,",
        "\"violations\": 0,",
        "\"violation_texts\": []",
    ] {
        assert!(report.contains(part), "{part} in {report}");
    }
}

#[test]
fn a_process_finds_the_library_beside_the_tests_and_it_has_every_function() {
    let name = "a_process_finds_the_library_beside_the_tests_and_it_has_every_function";
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    if !apart(name, &[("LD_LIBRARY_PATH", folder.to_str().unwrap()), ("FAKE_CUDA_DEVICES", "1")]) {
        return;
    }
    let stand_in = StandIn::of_this_process().expect("libcuda.so of this crate");
    // SAFETY: the library that was just opened; it stays open.
    let library = unsafe { libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW) };
    // SAFETY: the library is open and the name ends with a zero byte.
    let address = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
    for name in [c"cuMemcpyHtoDAsync_v2", c"cuGetProcAddress_v2", c"fake_cuda_register_kernel"] {
        assert!(!address(name).is_null(), "{name:?}");
    }
    // SAFETY: the function of this name has this type.
    let init: extern "C" fn(u32) -> u32 = unsafe { std::mem::transmute(address(c"cuInit")) };
    // SAFETY: the library exports this function with this type, and is never closed.
    let retain: extern "C" fn(*mut Handle, i32) -> u32 =
        unsafe { std::mem::transmute(address(c"cuDevicePrimaryCtxRetain")) };
    let mut context = ptr::null_mut();
    stand_in.fail("cuInit", 2, 4).unwrap();
    assert!(stand_in.fail("cuinit", 1, 4).is_err() && stand_in.fail_later("cuInit", 1, 4).is_err());
    assert_eq!((init(0), init(0), retain(&raw mut context, 1), retain(&raw mut context, 0)), (0, 4, 101, 0));
    assert_eq!(stand_in.counters(), Counters { contexts: 1, ..Counters::default() });
    assert_eq!((stand_in.more_counters(), stand_in.violations()), (MoreCounters::default(), vec![]));
    stand_in.reset();

    // SAFETY: the functions of these names have these types.
    let current: extern "C" fn(Handle) -> u32 = unsafe { std::mem::transmute(address(c"cuCtxSetCurrent")) };
    // SAFETY: the library exports this function with this type, and is never closed.
    let load: extern "C" fn(*mut Handle, *const u8) -> u32 =
        unsafe { std::mem::transmute(address(c"cuModuleLoadData")) };
    type Find = extern "C" fn(*mut Handle, Handle, *const std::ffi::c_char) -> u32;
    // SAFETY: `Find` is the type of this exported function, and the library is never closed.
    let find: Find = unsafe { std::mem::transmute(address(c"cuModuleGetFunction")) };
    let (mut module, mut kernel) = (ptr::null_mut(), ptr::null_mut());
    assert_eq!((current(context), load(&raw mut module, c".entry add(".as_ptr().cast())), (0, 0));
    assert_eq!(find(&raw mut kernel, module, c"add".as_ptr()), 500);
    // SAFETY: a function that takes such parameters.
    unsafe { stand_in.register_kernel("add", add, &[8, 8, 1]) }.unwrap();
    assert_eq!(find(&raw mut kernel, module, c"add".as_ptr()), 0);
}

#[test]
fn functions_are_found_by_name_in_their_newest_form() {
    let (mut function, mut status) = (ptr::null_mut(), 9);
    cu!(cuGetProcAddress_v2(c"cuMemAlloc".as_ptr(), &raw mut function, 12080, 0, &raw mut status));
    assert_eq!((function, status), (cuMemAlloc_v2 as *mut c_void, 0));
    cu!(cuGetProcAddress_v2(c"cuInit".as_ptr(), &raw mut function, 12080, 0, &raw mut status));
    assert_eq!((function, status), (cuInit as *mut c_void, 0));
    cu!(500: cuGetProcAddress_v2(c"cuGraphCreate".as_ptr(), &raw mut function, 12080, 0, &raw mut status));
    assert_eq!((function, status), (ptr::null_mut(), 1));
}
