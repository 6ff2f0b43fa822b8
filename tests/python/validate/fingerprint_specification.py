"""An independent implementation of docs/fingerprint.md in NumPy."""

import hashlib

import numpy as np

ONES = (1 << 64) - 1


def pseudorandom(number: int) -> int:
    """The output of SplitMix64 of this number, seeded with 0."""
    mixed = (number + 1) * 0x9E3779B97F4A7C15 & ONES
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & ONES
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & ONES
    return mixed ^ mixed >> 31


def words(tensor: np.ndarray) -> tuple[str, np.ndarray, np.ndarray]:
    """The kind, and the lower and the upper word of each element, in 64 bits."""
    zeros = np.zeros(tensor.shape, np.uint64)
    if tensor.dtype.name in ("bfloat16", "float16", "float32"):
        return "float", tensor.astype(np.float32).view(np.uint32).astype(np.uint64), zeros
    if tensor.dtype.name == "float64":
        with np.errstate(over="ignore"):
            narrow, codes = tensor.astype(np.float32), tensor.view(np.uint64)
        exact = narrow.astype(np.float64).view(np.uint64) == codes
        low = np.where(exact, narrow.view(np.uint32), codes & 0xFFFFFFFF)
        return "float", low.astype(np.uint64), np.where(exact, 0, (codes >> 32) + 1 & 0xFFFFFFFF).astype(np.uint64)
    if tensor.dtype.kind in "iub":
        value = tensor.astype(np.uint64 if tensor.dtype.kind == "u" else np.int64).view(np.uint64)
        return "integer", value & 0xFFFFFFFF, (value >> 32) + (value >> 31 & 1) & 0xFFFFFFFF
    *outer, columns = tensor.shape or (1,)
    codes = tensor.reshape(*tensor.shape, 1).view(np.uint8).reshape(*outer, columns * tensor.dtype.itemsize)
    return tensor.dtype.name, codes.astype(np.uint64), np.zeros(codes.shape, np.uint64)


def fingerprint(tensor: np.ndarray, column_blocks: int = 1) -> tuple[str, int, bytes]:
    """The kind, the rows of a block, and the sums of the blocks."""
    kind, low, high = words(np.ascontiguousarray(tensor).reshape(tensor.shape))
    *outer, columns = low.shape or (1,)
    rows, matrices = (outer or [1])[-1], int(np.prod(outer[:-1]))
    if matrices > 4096:
        rows, matrices = rows * matrices, 1
    per_block = 1
    while per_block < -(-rows // max(1, 64 // max(matrices, 1))):
        per_block *= 2
    per_matrix, width = -(-rows // per_block), -(-columns // column_blocks)
    sums = np.zeros((matrices * per_matrix if columns else 0, column_blocks, 2), np.uint64)
    low, high = (half.reshape(rows * matrices, columns) for half in (low, high))
    for which in (0, 1):
        numbers = [pseudorandom(column) >> 32 * which & 0xFFFFFFFF for column in range(2048)]
        of_low, of_high = (np.resize(np.array(half, np.uint64), columns) for half in (numbers[:1024], numbers[1024:]))
        chunks = np.array([pseudorandom((1 << 60) + c // 1024 * 2 + which) | 1 for c in range(columns)], np.uint64)
        for row in range(len(low) if columns else 0):
            terms = (low[row] * of_low + high[row] * of_high) * chunks
            block = row // rows * per_matrix + row % rows // per_block
            for part in range(column_blocks):
                of_row = int(terms[part * width : (part + 1) * width].sum(dtype=np.uint64))
                of_row *= pseudorandom((2 << 60) + row * 2 + which) | 1
                sums[block, part, which] = (int(sums[block, part, which]) + of_row) & ONES
    return kind, per_block, sums.astype("<u8").tobytes()


def digest(tensor: np.ndarray) -> str:
    """The SHA-256 of the elements in C order, little-endian: NumPy's own order on such a machine."""
    return f"sha256:{hashlib.sha256(np.ascontiguousarray(tensor).tobytes()).hexdigest()}"
