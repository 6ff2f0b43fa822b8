//! Elements out of a strided tensor, in C order.

use super::Buffer;

/// Writes the elements of `buffer` to `out`, which has exactly their size. Runs of adjacent elements are copied whole.
pub(super) fn gather(buffer: &Buffer, out: &mut [u8]) {
    let item = buffer.dtype().bytes().unwrap_or(1);
    let (shape, strides) = (buffer.shape(), buffer.strides());
    // The trailing dimensions that lie without gaps form one run.
    let mut run = 1i64;
    let mut outer = shape.len();
    while outer > 0 && (strides[outer - 1] == run || shape[outer - 1] == 1) {
        run *= shape[outer - 1];
        outer -= 1;
    }
    let run_bytes = run as usize * item;
    let bytes = buffer.storage().bytes();
    let mut position = vec![0i64; outer];
    let mut element = 0i64;
    for chunk in out.chunks_exact_mut(run_bytes.max(1)) {
        // In bounds: `Buffer` checks the reach of all strides when it is made.
        let start = (buffer.offset() as i64 + element * item as i64) as usize;
        chunk.copy_from_slice(&bytes[start..start + run_bytes]);
        for axis in (0..outer).rev() {
            position[axis] += 1;
            element += strides[axis];
            if position[axis] < shape[axis] {
                break;
            }
            element -= strides[axis] * shape[axis];
            position[axis] = 0;
        }
    }
}
