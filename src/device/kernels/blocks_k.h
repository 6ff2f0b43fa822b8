// Super-blocks of 256 elements, whose groups of 16 or 32 have small integer scales of their own. As crates/kernels/src/quant/k.rs.
#pragma once
#include "blocks.h"

// Two-bit integers: of each 32 bytes, the lowest bits are the first 32 elements of 128.
template <u32 N, u32 ALIGN> DEVICE Bytes<N> load_two_bits(const u8 *from, u32 run, u32 at) {
    return load_bytes<N, ALIGN>(from + run / 4 * 32 + at) >> run % 4 * 2 & 3;
}

// Nibbles: of each 32 bytes, the low ones are the first 32 elements of 64.
template <u32 N, u32 ALIGN> DEVICE Bytes<N> load_four_bits(const u8 *from, u32 run, u32 at) {
    return load_bytes<N, ALIGN>(from + run / 2 * 32 + at) >> run % 2 * 4 & 15;
}

// One more bit of each: bit `run` of byte `at`.
template <u32 N, u32 ALIGN> DEVICE Bytes<N> load_one_bit(const u8 *from, u32 run, u32 at) { return load_bytes<N, ALIGN>(from + at) >> run & 1; }

struct Q2_K {
    static constexpr u32 ELEMENTS = 256, BYTES = 84, ALIGN = 4;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        const u32 both = block[2 * run + at / 16];
        const float scale = half_at<ALIGN>(block + 80) * number(both & 15, 0, 0);
        const float minimum = half_at<ALIGN>(block + 82) * number(both >> 4, 0, 0);
        scale_each_from(out, load_two_bits<N, ALIGN>(block + 16, run, at), scale, -minimum);
    }
};

struct Q3_K {
    static constexpr u32 ELEMENTS = 256, BYTES = 110, ALIGN = 2;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        const u32 group = 2 * run + at / 16;
        const u32 low = block[96 + group % 8] >> run / 4 * 4 & 15, high = block[104 + group % 4] >> run / 2 * 2 & 3;
        const Bytes<N> quants = load_two_bits<N, ALIGN>(block + 32, run, at) | load_one_bit<N, ALIGN>(block, run, at) << 2;
        scale_each(out, quants, half_at<ALIGN>(block + 108) * number(low | high << 4, 0, 32), 4);
    }
};

// What Q4_K and Q5_K begin with: two f16, and a scale and a minimum of six bits for each 32 elements, in 12 bytes.
template <u32 ALIGN> struct Group {
    float scale, minimum;

    DEVICE Group of(const u8 *block, u32 run) {
        const u8 *place = block + 4 + run % 4;
        const u32 low_scale = place[0], low_minimum = place[4], rest = place[8];
        const u32 scale = run < 4 ? low_scale & 63 : (rest & 15) | low_scale >> 6 << 4;
        const u32 minimum = run < 4 ? low_minimum & 63 : rest >> 4 | low_minimum >> 6 << 4;
        return {half_at<ALIGN>(block) * number(scale, 0, 0), half_at<ALIGN>(block + 2) * number(minimum, 0, 0)};
    }
};

struct Q4_K {
    static constexpr u32 ELEMENTS = 256, BYTES = 144, ALIGN = 16;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        const auto group = Group<ALIGN>::of(block, run);
        scale_each_from(out, load_four_bits<N, ALIGN>(block + 16, run, at), group.scale, -group.minimum);
    }
};

struct Q5_K {
    static constexpr u32 ELEMENTS = 256, BYTES = 176, ALIGN = 16;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        const auto group = Group<ALIGN>::of(block, run);
        const Bytes<N> quants = load_four_bits<N, ALIGN>(block + 48, run, at) | load_one_bit<N, ALIGN>(block + 16, run, at) << 4;
        scale_each_from(out, quants, group.scale, -group.minimum);
    }
};

struct Q6_K {
    static constexpr u32 ELEMENTS = 256, BYTES = 210, ALIGN = 2;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        // Of 128 elements the first 64 are the low nibbles of 64 bytes, and each 32 have two bits of their own in the same 32 bytes.
        const Bytes<N> low = load_bytes<N, ALIGN>(block + run / 4 * 64 + run % 2 * 32 + at) >> run / 2 % 2 * 4 & 15;
        const Bytes<N> high = load_two_bits<N, ALIGN>(block + 128, run, at) << 4;
        const u32 quant = block[192 + 2 * run + at / 16] ^ 0x80;
        scale_each(out, low | high, half_at<ALIGN>(block + 208) * number(quant, 0, 128), 32);
    }
};
