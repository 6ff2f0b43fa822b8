//! Elements out of a strided tensor, in C order.

use super::Buffer;
use crate::error::Result;
use crate::storage::{Storage, no_memory};

/// In a mapping, shorter runs than this are not worth a range of the kernel's guarded copy each.
const GUARDED_RUN: usize = 256;

/// Where less than this lies between two runs, it is read with them: a disk takes longer for another request than for a few more bytes.
const READ_ACROSS: usize = 64 << 10;

/// Writes the elements of `buffer` to `out`, which has exactly their size. Runs of adjacent elements are copied whole.
pub(super) fn gather(buffer: &Buffer, out: &mut [u8]) -> Result<()> {
    let runs = Runs::new(buffer);
    let (storage, len) = (buffer.storage(), runs.len);
    if !storage.is_mapped() || len >= GUARDED_RUN || out.is_empty() {
        return storage.copy_runs(runs.map(|start| (start, len)), out);
    }
    // Short runs of a mapping: everything from the first element to the last is copied under guard, and gathered from there.
    let (first, last) = reach(buffer);
    let size = last - first;
    let whole = Storage::filled(size, |block| storage.copy_runs(std::iter::once((first, size)), block));
    let whole = whole.ok_or_else(|| no_memory(size))??;
    whole.copy_runs(runs.map(|start| (start - first, len)), out)
}

/// Asks for the pages of a mapped tensor to be read.
pub(super) fn prefetch(buffer: &Buffer) {
    let runs = Runs::new(buffer);
    let (storage, len) = (buffer.storage(), runs.len);
    if !storage.is_mapped() {
        return;
    }
    let mut asked: Option<(usize, usize)> = None;
    for start in runs {
        asked = match asked {
            Some((first, last)) if first <= start && start <= last + READ_ACROSS => Some((first, last.max(start + len))),
            before => {
                if let Some((first, last)) = before {
                    storage.prefetch(first, last - first);
                }
                Some((start, start + len))
            }
        };
    }
    if let Some((first, last)) = asked {
        storage.prefetch(first, last - first);
    }
}

/// The bytes of the storage between which all elements lie.
pub(super) fn reach(buffer: &Buffer) -> (usize, usize) {
    let item = buffer.dtype().bytes().unwrap_or(1) as i64;
    let (mut first, mut last) = (buffer.offset() as i64, buffer.offset() as i64 + item);
    for (&dim, &stride) in buffer.shape().iter().zip(buffer.strides()) {
        let distance = (dim - 1) * stride * item; // in bounds: `Buffer` checks the reach of all strides when it is made
        if distance < 0 {
            first += distance;
        } else {
            last += distance;
        }
    }
    (first as usize, last as usize)
}

/// The starts, in bytes, of runs of adjacent elements.
struct Runs<'a> {
    shape: &'a [i64],
    strides: &'a [i64],
    /// Bytes of one run.
    len: usize,
    left: usize,
    item: i64,
    offset: i64,
    /// The position in the outer dimensions, and its element.
    position: Vec<i64>,
    element: i64,
}

impl<'a> Runs<'a> {
    fn new(buffer: &'a Buffer) -> Self {
        let item = buffer.dtype().bytes().unwrap_or(1);
        let (shape, strides) = (buffer.shape(), buffer.strides());
        // The trailing dimensions that lie without gaps form one run.
        let mut run = 1i64;
        let mut outer = shape.len();
        while outer > 0 && (strides[outer - 1] == run || shape[outer - 1] == 1) {
            run *= shape[outer - 1];
            outer -= 1;
        }
        Self {
            shape: &shape[..outer],
            strides: &strides[..outer],
            len: run as usize * item,
            left: shape[..outer].iter().product::<i64>() as usize,
            item: item as i64,
            offset: buffer.offset() as i64,
            position: vec![0; outer],
            element: 0,
        }
    }
}

impl Iterator for Runs<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let start = (self.offset + self.element * self.item) as usize;
        for axis in (0..self.shape.len()).rev() {
            self.position[axis] += 1;
            self.element += self.strides[axis];
            if self.position[axis] < self.shape[axis] {
                break;
            }
            self.element -= self.strides[axis] * self.shape[axis];
            self.position[axis] = 0;
        }
        Some(start)
    }
}
