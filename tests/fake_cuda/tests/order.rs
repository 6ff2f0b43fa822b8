//! The order of operations: within a stream, across streams, and the violations if nothing orders them.
#![allow(unsafe_code, clippy::items_after_statements, clippy::large_stack_arrays)]

#[macro_use]
mod support;

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use support::*;

const LENGTH: usize = 100_000;

#[test]
fn a_stream_executes_in_order_and_later() {
    if !apart("a_stream_executes_in_order_and_later", &[("FAKE_CUDA_DELAY", "50000")]) {
        return;
    }
    begin(0);
    let (stream, source, back) = (stream(), pinned(LENGTH), pinned(LENGTH));
    let memory = device_memory(LENGTH);
    source.fill(1);
    cu!(cuMemcpyHtoDAsync_v2(memory, source.as_ptr().cast(), LENGTH, stream));
    cu!(cuMemsetD8Async(memory, 2, 10, stream));
    cu!(cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), memory, LENGTH, stream));
    assert_eq!(back, [0xDB; LENGTH], "nothing was executed yet, and what is read too early is neither old nor new");
    cu!(600: cuStreamQuery(stream));
    assert_eq!(more_counters().unfinished, 3);
    cu!(cuStreamSynchronize(stream));
    cu!(cuStreamQuery(stream));
    assert_eq!(back[..10], [2; 10]);
    assert_eq!(back[10..], [1; LENGTH - 10]);
    assert_eq!(violations(), [""; 0]);
}

#[test]
fn a_stream_waits_for_an_event_of_another() {
    if !apart("a_stream_waits_for_an_event_of_another", &[("FAKE_CUDA_GBPS", "0.001")]) {
        return;
    }
    begin(0);
    let (first, second, event) = (stream(), stream(), event());
    let (source, back, memory) = (pinned(LENGTH), pinned(LENGTH), device_memory(LENGTH));
    source.fill(7);
    cu!(cuMemcpyHtoDAsync_v2(memory, source.as_ptr().cast(), LENGTH, first)); // 100 ms
    cu!(cuEventRecord(event, first));
    cu!(600: cuEventQuery(event));
    cu!(cuStreamWaitEvent(second, event, 0));
    cu!(cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), memory, LENGTH, second));
    cu!(cuStreamSynchronize(second));
    assert_eq!(back, [7; LENGTH]);
    cu!(cuEventQuery(event));
    assert_eq!(violations(), [""; 0]);
}

#[test]
fn a_read_without_an_event_is_found_even_when_the_write_was_faster() {
    if !apart("a_read_without_an_event_is_found_even_when_the_write_was_faster", &[("FAKE_CUDA_DELAY", "0")]) {
        return;
    }
    begin(0);
    let (first, second) = (stream(), stream());
    let (source, back, memory) = (pinned(LENGTH), pinned(LENGTH), device_memory(LENGTH));
    cu!(cuMemcpyHtoDAsync_v2(memory, source.as_ptr().cast(), LENGTH, first));
    while more_counters().unfinished > 0 {
        std::thread::yield_now();
    }
    cu!(cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), memory + 10, 10, second));
    assert_eq!(counters().violations, 1);
    let found = violations();
    assert!(found[0].contains("cuMemcpyDtoHAsync_v2") && found[0].contains("reads 10 bytes"), "{found:?}");
    assert!(found[0].contains("cuMemcpyHtoDAsync_v2"), "{found:?}");
    cu!(cuCtxSynchronize());
    cu!(cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), memory, 10, second));
    assert_eq!(counters().violations, 1, "after a synchronisation all is known to be done");
}

#[test]
fn a_source_that_changes_before_its_copy_is_found() {
    if !apart("a_source_that_changes_before_its_copy_is_found", &[("FAKE_CUDA_DELAY", "50000")]) {
        return;
    }
    begin(0);
    for length in [1, LENGTH, 8 << 20] {
        fake_cuda_reset();
        let (stream, source, memory) = (stream(), pinned(length), device_memory(length));
        source.fill(1);
        cu!(cuMemcpyHtoDAsync_v2(memory, source.as_ptr().cast(), length, stream));
        source.fill(2);
        cu!(cuStreamSynchronize(stream));
        let found = violations();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("used again too early"), "{found:?}");
        assert_eq!(bytes_at(memory, 1), [2], "the copy reads what is there when it is executed");
    }
}

#[test]
fn a_source_that_is_not_pinned_can_be_used_again_at_once() {
    if !apart("a_source_that_is_not_pinned_can_be_used_again_at_once", &[("FAKE_CUDA_DELAY", "50000")]) {
        return;
    }
    begin(0);
    for length in [LENGTH, 8 << 20] {
        let (stream, mut source, memory) = (stream(), vec![1_u8; length], device_memory(length));
        cu!(cuMemcpyHtoDAsync_v2(memory, source.as_ptr().cast(), length, stream));
        source.fill(2);
        cu!(cuStreamSynchronize(stream));
        assert_eq!(bytes_at(memory, length), vec![1; length]);
    }
    assert_eq!(violations(), [""; 0]);
}

#[test]
fn freeing_what_is_in_use_is_found() {
    if !apart("freeing_what_is_in_use_is_found", &[]) {
        return;
    }
    begin(0);
    let (first, second) = (stream(), stream());
    let (source, one, two) = (pinned(LENGTH), device_memory(LENGTH), device_memory(LENGTH));
    cu!(cuMemcpyHtoDAsync_v2(one, source.as_ptr().cast(), LENGTH, first));
    cu!(cuMemcpyHtoDAsync_v2(two, source.as_ptr().cast(), LENGTH, first));
    cu!(cuMemFreeAsync(two, second));
    assert_eq!(violations().len(), 1, "a free in a stream that does not wait for the copy");
    cu!(cuMemFree_v2(one));
    assert_eq!(violations().len(), 2, "a free of memory that is written");
    let three = device_memory(LENGTH);
    cu!(cuMemcpyHtoDAsync_v2(three, source.as_ptr().cast(), LENGTH, first));
    cu!(cuMemFreeHost(source.as_mut_ptr().cast()));
    assert_eq!(violations().len(), 3, "a free of memory that is read");
    cu!(cuStreamSynchronize(first));
    cu!(cuMemFree_v2(three));
    assert_eq!(violations().len(), 3, "after a synchronisation it is right: {:?}", violations());
}

#[test]
fn the_default_stream_and_blocking_ones_wait_for_each_other() {
    if !apart("the_default_stream_and_blocking_ones_wait_for_each_other", &[("FAKE_CUDA_GBPS", "0.001")]) {
        return;
    }
    begin(0);
    let mut blocking = ptr::null_mut();
    cu!(cuStreamCreate(&raw mut blocking, 0));
    let (source, memory) = (pinned(LENGTH), device_memory(LENGTH));
    source.fill(3);
    cu!(cuMemcpyHtoDAsync_v2(memory, source.as_ptr().cast(), LENGTH, blocking));
    assert_eq!(bytes_at(memory, LENGTH), [3; LENGTH]);
    assert_eq!(violations(), [""; 0]);
}

#[test]
fn a_host_function_is_called_in_its_turn_and_tells_what_is_done() {
    if !apart("a_host_function_is_called_in_its_turn_and_tells_what_is_done", &[]) {
        return;
    }
    unsafe extern "C" fn count(argument: *mut c_void) {
        // SAFETY: the argument of the launch below.
        unsafe { &*argument.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
    }
    static CALLED: AtomicU32 = AtomicU32::new(0);
    begin(0);
    let (stream, source, memory) = (stream(), pinned(LENGTH), device_memory(LENGTH));
    cu!(cuMemcpyHtoDAsync_v2(memory, source.as_ptr().cast(), LENGTH, stream));
    cu!(cuLaunchHostFunc(stream, count, (&raw const CALLED).cast_mut().cast()));
    while CALLED.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    cu!(cuMemFree_v2(memory));
    cu!(cuMemFreeHost(source.as_mut_ptr().cast()));
    assert_eq!(violations(), [""; 0]);
}

#[test]
fn memory_of_a_stream_is_not_used_by_another_before_it_is_there() {
    if !apart("memory_of_a_stream_is_not_used_by_another_before_it_is_there", &[]) {
        return;
    }
    begin(0);
    let (first, second, event) = (stream(), stream(), event());
    let (mut one, mut two) = (0, 0);
    cu!(cuMemAllocAsync(&raw mut one, LENGTH, first));
    cu!(cuMemAllocAsync(&raw mut two, LENGTH, first));
    cu!(cuMemsetD8Async(one, 1, LENGTH, second));
    assert_eq!(violations().len(), 1);
    cu!(cuEventRecord(event, first));
    cu!(cuStreamWaitEvent(second, event, 0));
    cu!(cuMemsetD8Async(two, 1, LENGTH, second));
    cu!(cuMemFreeAsync(two, second));
    assert_eq!(violations().len(), 1, "{:?}", violations());
}
