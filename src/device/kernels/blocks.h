// What the decoders of packed blocks share: fields of blocks, small integers in the bytes of words, and the loop over a tensor.
//
// A thread makes twice 16 bytes of the result: four f32, or eight f16 or bf16, which lie side by side in one block. A warp writes whole lines of
// memory, and what its threads read are a few lines, which the first of them brings to the cache for all.
//
// Every product and sum is rounded by itself, in the order of crates/kernels/src/quant, which gives the same bits. Where that gives a NaN, so does
// this; which one is promised by neither, and depends on the processor: the products and sums of a GPU have only one, 0x7fffffff.
#pragma once
#include "common.h"

// N small integers, four to a word, the first in the lowest byte.
template <u32 N> struct Bytes {
    u32 words[N / 4];
};

template <u32 N> DEVICE Bytes<N> operator>>(Bytes<N> bytes, u32 shift) {
    for (u32 &word : bytes.words) word >>= shift;
    return bytes;
}

template <u32 N> DEVICE Bytes<N> operator<<(Bytes<N> bytes, u32 shift) {
    for (u32 &word : bytes.words) word <<= shift;
    return bytes;
}

template <u32 N> DEVICE Bytes<N> operator|(Bytes<N> bytes, Bytes<N> others) {
    for (u32 i = 0; i < N / 4; i++) bytes.words[i] |= others.words[i];
    return bytes;
}

// Each byte with the same bits kept, or flipped.
template <u32 N> DEVICE Bytes<N> operator&(Bytes<N> bytes, u8 kept) {
    for (u32 &word : bytes.words) word &= kept * 0x01010101u;
    return bytes;
}

template <u32 N> DEVICE Bytes<N> operator^(Bytes<N> bytes, u8 flipped) {
    for (u32 &word : bytes.words) word ^= flipped * 0x01010101u;
    return bytes;
}

// The bytes at an address that is a multiple of ALIGN, or of as many as they are: in as few accesses as that allows.
template <class T, u32 ALIGN> DEVICE T load_aligned(const u8 *from) {
    if constexpr (ALIGN >= sizeof(T)) {
        return *(const T *)from;
    } else if constexpr (ALIGN == 1) {
        T value = 0;
        for (u32 byte = 0; byte < sizeof(T); byte++) value |= (T)((T)from[byte] << 8 * byte);
        return value;
    } else {
        return load_aligned<u16, ALIGN>(from) | (T)load_aligned<u16, ALIGN>(from + 2) << 16;
    }
}

template <u32 N, u32 ALIGN> DEVICE Bytes<N> load_bytes(const u8 *from) {
    if constexpr (N == 8 && ALIGN >= 8) {
        const u64 both = *(const u64 *)from;
        return {(u32)both, (u32)(both >> 32)};
    } else {
        Bytes<N> bytes;
        for (u32 i = 0; i < N / 4; i++) bytes.words[i] = load_aligned<u32, ALIGN>(from + 4 * i);
        return bytes;
    }
}

// N bits from bit `first` of some bytes on, one to a byte. `first` is a multiple of N, which is 4 or 8.
template <u32 N> DEVICE Bytes<N> load_bits(const u8 *from, u32 first) {
    const u32 bits = from[first / 8] >> first % 8;
    Bytes<N> spread;
    // Four copies of four bits, of which one stays in each byte.
    for (u32 i = 0; i < N / 4; i++) spread.words[i] = (bits >> 4 * i & 15) * 0x00204081u & 0x01010101u;
    return spread;
}

// Four bytes of the eight of two words; a selector is four nibbles, each the number of a byte.
DEVICE u32 permute(u32 low, u32 high, u32 selector) {
#ifdef __CUDA_ARCH__
    return __byte_perm(low, high, selector);
#else
    const u64 bytes = low | (u64)high << 32;
    u32 chosen = 0;
    for (u32 i = 0; i < 4; i++) chosen |= (u32)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return chosen;
#endif
}

// Byte `place` of a word minus `bias`, exactly: 2^23 plus a byte is the float that has the byte in its lowest bits. A GPU does this four times as
// fast as a conversion.
DEVICE float number(u32 word, u32 place, u32 bias) {
    return float_of(permute(word, 0x4b000000, 0x7650 | place)) - (float)(0x800000 + bias);
}

// The value of an f16. A NaN has no digits but the one that makes it quiet, which `rounded` relies on.
DEVICE float half(u16 code) {
#ifdef __CUDA_ARCH__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(code));
    return value;
#else
    const u32 bits = F16::decode(code);
    return float_of(is_nan(bits) ? QUIET_NAN : bits);
#endif
}

template <u32 ALIGN> DEVICE float half_at(const u8 *from) { return half(load_aligned<u16, ALIGN>(from)); }

// `scale * (quant - bias)` for each byte.
template <u32 N> DEVICE void scale_each(float (&out)[N], Bytes<N> quants, float scale, u32 bias) {
    for (u32 i = 0; i < N; i++) out[i] = scale * number(quants.words[i / 4], i % 4, bias);
}

// `scale * quant + offset` for each byte.
template <u32 N> DEVICE void scale_each_from(float (&out)[N], Bytes<N> quants, float scale, float offset) {
    for (u32 i = 0; i < N; i++) out[i] = scale * number(quants.words[i / 4], i % 4, 0) + offset;
}

// The code of the nearest float of a type, ties to even; of bf16 in the upper half. NaN have few digits here, as `half` says, and saturation is not
// asked for: so this is shorter than `encode`.
DEVICE u32 rounded(float value, F16) {
#ifdef __CUDA_ARCH__
    u16 code;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(value));
    return code;
#else
    return F16::encode(bits_of(value), F16::overflow(false));
#endif
}

DEVICE u32 rounded(float value, BF16) {
    // The NaN of a GPU has all digits set: rounded up it would be a zero.
    const i32 bits = (i32)bits_of(value);
    const u32 limited = bits < (i32)QUIET_NAN ? (u32)bits : QUIET_NAN;
    return limited + 0x7fff + (limited >> 16 & 1);
}

// The elements that have the bytes of a word: one, or two.
DEVICE u32 word_of(const float *values, F32) { return bits_of(values[0]); }
DEVICE u32 word_of(const float *values, F16) { return rounded(values[0], F16()) | rounded(values[1], F16()) << 16; }
DEVICE u32 word_of(const float *values, BF16) { return permute(rounded(values[0], BF16()), rounded(values[1], BF16()), 0x7632); }

// Reads bytes and writes elements one by one, where something is not aligned.
template <class Format, class To> DEVICE void dequantize_unaligned(const u8 *from, u8 *to, u64 count) {
    typedef typename To::Code Code;
    constexpr u32 ITEMS = Format::ELEMENTS / 4;
    FOR_EACH_ITEM(item, count * ITEMS) {
        const u32 place = (u32)(item % ITEMS);
        float values[4];
        Format::template decode<1>(from + item / ITEMS * Format::BYTES, place / 8, place % 8 * 4, values);
        for (u32 at = 0; at < 4 * sizeof(Code); at += 4) {
            const u32 word = word_of(values + at / sizeof(Code), To());
            Code *elements = (Code *)(to + item * (4 * sizeof(Code)) + at);
            for (u32 i = 0; i < 4 / sizeof(Code); i++) elements[i] = (Code)(word >> 16 * i);
        }
    }
}

// Decodes `count` blocks of a format into elements of a type, which begin at a multiple of their size.
//
// A format has a function `decode(block, run, at, out)`: N elements of the 32 that are the `run`th of a block, from the `at`th on, a multiple of N.
//
// `from` is at a multiple of the format's ALIGN, the largest power of two that divides the bytes of a block, wherever a row of a tensor begins at a
// multiple of 16; and `to` is at a multiple of 16 in memory of its own.
template <class Format, class To> DEVICE void dequantize(const u8 *from, u8 *to, u64 count) {
    typedef Vector<u32, 4> Words;
    constexpr u32 PER_WORD = 4 / sizeof(typename To::Code), N = 4 * PER_WORD, RUN = 32 / (2 * N), ITEMS = Format::ELEMENTS / (2 * N);
    if ((u64)from % Format::ALIGN != 0 || !is_aligned<Words>(to)) return dequantize_unaligned<Format, To>(from, to, count);
    // Of 64 bytes of the result a thread makes the first and the third 16, its neighbour the others: together they write whole sectors of 32.
    FOR_EACH_ITEM(item, count * ITEMS) {
        const u32 place = (u32)(item % ITEMS), start = place % RUN / 2 * (4 * N) + place % 2 * N;
        for (u32 part = 0; part < 2; part++) {
            float values[N];
            Format::template decode<Format::ALIGN>(from + item / ITEMS * Format::BYTES, place / RUN, start + part * (2 * N), values);
            Words words;
            for (u32 i = 0; i < 4; i++) words.at[i] = word_of(values + i * PER_WORD, To());
            ((Words *)to)[item / 2 * 4 + item % 2 + part * 2] = words;
        }
    }
}
