// Formats of one and two bits, and of three values; and Q8_K, which models are computed with. As crates/kernels/src/quant/simple.rs, ternary.rs and
// k.rs.
#pragma once
#include "blocks_k.h"

struct Q1_0 {
    static constexpr u32 ELEMENTS = 128, BYTES = 18, ALIGN = 2;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        scale_each(out, load_bits<N>(block + 2, 32 * run + at) << 1, half_at<ALIGN>(block), 1);
    }
};

struct Q2_0 {
    static constexpr u32 ELEMENTS = 64, BYTES = 18, ALIGN = 2;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        Bytes<N> quants;
        for (u32 i = 0; i < N / 4; i++) {
            const u32 four = block[2 + (32 * run + at) / 4 + i];
            quants.words[i] = (four | four << 6 | four << 12 | four << 18) & 0x03030303;
        }
        scale_each(out, quants, half_at<ALIGN>(block), 1);
    }
};

struct TQ2_0 {
    static constexpr u32 ELEMENTS = 256, BYTES = 66, ALIGN = 2;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        scale_each(out, load_two_bits<N, ALIGN>(block, run, at), half_at<ALIGN>(block + 64), 1);
    }
};

struct TQ1_0 {
    static constexpr u32 ELEMENTS = 256, BYTES = 54, ALIGN = 2;
    // The next digit in base three of each byte, which has them as a fraction of 256. Two bytes with room between them do not touch each other.
    DEVICE u32 digits(u32 bytes, u32 power) { return ((bytes & 0x00ff00ff) * power & 0x00ff00ff) * 3 >> 8 & 0x00ff00ff; }
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        Bytes<N> quants;
        for (u32 i = 0; i < N / 4; i++) {
            // All first digits of 32 bytes, all second ones, up to the fifth; so of the next 16 bytes; and four of each of the last four.
            const u32 first = 32 * run + at + 4 * i;
            const u32 from = first < 160 ? first % 32 : first < 240 ? 32 + first % 16 : 48;
            const u32 place = first < 160 ? run : first < 240 ? (first - 160) / 16 : (first - 240) / 4;
            const u32 bytes = load_aligned<u32, ALIGN>(block + from), power = place < 4 ? 0x1b090301 >> 8 * place & 0xff : 81;
            quants.words[i] = digits(bytes, power) | digits(bytes >> 8, power) << 8;
        }
        scale_each(out, quants, half_at<ALIGN>(block + 52), 1);
    }
};

struct Q8_K {
    static constexpr u32 ELEMENTS = 256, BYTES = 292, ALIGN = 4;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        const u32 bits = load_aligned<u32, ALIGN>(block);
        const float scale = float_of(is_nan(bits) ? QUIET_NAN : bits); // as `half` does
        scale_each(out, load_bytes<N, ALIGN>(block + 4 + 32 * run + at) ^ 0x80, scale, 128);
    }
};
