//! GGUF headers that lie, and headers that are merely odd: each case is a test with the rule, the tensor and the offset that it must name.

#![allow(clippy::result_large_err)] // a fault is compared here, not passed up

mod lies;
mod metadata;
mod offsets;
mod start;
mod tensors;

use crate::gguf_files::Made;
use max_weights::error::{Diagnostic, Error};
use max_weights::format::gguf::{self, Gguf};
use max_weights::format::{HeaderOptions, Parse, ParseProgress};

fn read_with(made: &Made, options: &HeaderOptions) -> Result<Gguf, Error> {
    match gguf::GgufParser::new(made.bytes.clone(), made.len(), options).advance()? {
        ParseProgress::Done(gguf) => Ok(gguf),
        ParseProgress::Need(parts) => panic!("asks for {parts:?} of a file of {}", made.len()),
    }
}

fn read(made: &Made) -> Gguf {
    read_with(made, &HeaderOptions::default()).expect("accepted")
}

fn fault_of(made: &Made) -> Diagnostic {
    read_with(made, &HeaderOptions::default()).expect_err("refused").diagnostic().expect("a fault").clone()
}

#[track_caller]
fn assert_fault(fault: &Diagnostic, rule: &str, tensor: Option<&str>, offset: u64) {
    assert_eq!((fault.rule.id, fault.tensor.as_deref(), fault.offset), (rule, tensor, Some(offset)), "{fault}");
}

#[track_caller]
fn refused(made: &Made, rule: &str, tensor: Option<&str>, offset: u64) -> Diagnostic {
    let fault = fault_of(made);
    assert_fault(&fault, rule, tensor, offset);
    assert!(!fault.help.is_empty(), "{fault}");
    fault
}

/// The one finding of a header that must be accepted.
#[track_caller]
fn noted(made: &Made, rule: &str, tensor: Option<&str>, offset: u64) -> Gguf {
    let read = read(made);
    assert_eq!(read.header.findings.len(), 1, "{:?}", read.header.findings);
    assert_fault(&read.header.findings[0], rule, tensor, offset);
    read
}

/// Bytes before the first key or, without keys, the first record.
const START: u64 = 24;
const MIN_TENSOR: u64 = 25;

/// A file with one tensor, whose record begins at [`START`], and the data it claims.
fn one(name: &str, dims: &[u64], type_id: u32, data: usize) -> Made {
    Made::new(1, 0).tensor(name, dims, type_id, 0).pad(32).data(data)
}

/// Two tensors of 8 floats each, the second at this offset.
fn two(second: u64, data: usize) -> Made {
    Made::new(2, 0).tensor("first", &[8], 0, 0).tensor("second", &[8], 0, second).pad(32).data(data)
}
