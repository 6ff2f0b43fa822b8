//! The hash of a tensor, independent of its file, and the hash of all tensors of a checkpoint.

use sha2::{Digest as _, Sha256};

/// What the hash of a tensor begins with.
const TENSOR: &[u8] = b"max-weights.tensor/1\n";
/// What the hash of all tensors begins with.
const TENSORS: &[u8] = b"max-weights.tensors/1\n";
const DIGITS: usize = 64;

/// SHA-256 over name, dtype, shape and elements: over these bytes, with all numbers as unsigned little-endian integers of 64 bits.
///
/// ```text
/// "max-weights.tensor/1" and a line feed
/// number of bytes of the name, name in UTF-8
/// number of bytes of the dtype, dtype as max_weights calls it, such as bfloat16 or Q4_K
/// number of dimensions, each dimension
/// 32 bytes of SHA-256 of the elements in C order and in little-endian byte order
/// ```
pub fn tensor_hash(name: &str, dtype: &str, shape: &[u64], elements: &[u8; 32]) -> [u8; 32] {
    let mut hash = Sha256::new_with_prefix(TENSOR);
    for text in [name, dtype] {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    hash.update((shape.len() as u64).to_le_bytes());
    for dim in shape {
        hash.update(dim.to_le_bytes());
    }
    hash.update(elements);
    hash.finalize().into()
}

/// SHA-256 over all tensors: of `max-weights.tensors/1`, a line feed, and the hashes of the tensors in ascending order, each once.
pub fn set_hash(tensors: impl IntoIterator<Item = [u8; 32]>) -> [u8; 32] {
    let sorted: std::collections::BTreeSet<[u8; 32]> = tensors.into_iter().collect();
    let mut hash = Sha256::new_with_prefix(TENSORS);
    for tensor in &sorted {
        hash.update(tensor);
    }
    hash.finalize().into()
}

/// Bytes in hexadecimal digits.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |text, byte| text + &format!("{byte:02x}"))
}

/// The bytes of hexadecimal digits; `None` if it is something else.
pub(crate) fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let digit = |digit: &u8| char::from(*digit).to_digit(16).map(|digit| digit as u8);
    let pairs = digits.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    });
    pairs.collect()
}

/// Whether this can be a SHA-256.
pub(super) fn is_sha256(digits: &str) -> bool {
    digits.len() == DIGITS && bytes_of(digits).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_tensor_is_that_of_the_bytes_that_the_documentation_names() {
        let elements: [u8; 32] = Sha256::digest([0, 0, 128, 63]).into();
        let bytes = [
            b"max-weights.tensor/1\n".as_slice(),
            &[1, 0, 0, 0, 0, 0, 0, 0],
            b"w",
            &[7, 0, 0, 0, 0, 0, 0, 0],
            b"float32",
            &[2, 0, 0, 0, 0, 0, 0, 0],
            &[1, 0, 0, 0, 0, 0, 0, 0],
            &[1, 0, 0, 0, 0, 0, 0, 0],
            &elements,
        ];
        let expected: [u8; 32] = Sha256::digest(bytes.concat()).into();
        assert_eq!(tensor_hash("w", "float32", &[1, 1], &elements), expected);
        let others = [
            tensor_hash("v", "float32", &[1, 1], &elements),
            tensor_hash("w", "int32", &[1, 1], &elements),
            tensor_hash("w", "float32", &[1], &elements),
            tensor_hash("w", "float32", &[1, 1], &[0; 32]),
        ];
        assert!(others.iter().all(|other| *other != expected));
    }

    #[test]
    fn the_hash_of_all_does_not_depend_on_their_order_or_on_how_often_they_are_there() {
        let (a, b) = ([1; 32], [2; 32]);
        assert_eq!(set_hash([a, b]), set_hash([b, a, b]));
        assert_ne!(set_hash([a, b]), set_hash([a]));
    }

    #[test]
    fn hexadecimal_digits_are_read_as_they_are_written() {
        assert_eq!(bytes_of(&hexadecimal(&[0, 15, 255])), Some(vec![0, 15, 255]));
        assert_eq!((bytes_of("0"), bytes_of("0g"), bytes_of("é0")), (None, None, None));
        assert!(is_sha256(&"aB".repeat(32)) && !is_sha256("ab") && !is_sha256(&"g0".repeat(32)));
    }
}
