// Formats with one scale for all elements, or one for 16, and no super-blocks; and IQ4_XS, whose levels are those of IQ4_NL. As
// crates/kernels/src/quant/simple.rs and iq.rs.
#pragma once
#include "blocks.h"

// Nibbles of HALF bytes: the low ones are the first HALF elements.
template <u32 HALF, u32 N, u32 ALIGN> DEVICE Bytes<N> load_nibbles(const u8 *from, u32 at) {
    return load_bytes<N, ALIGN>(from + at % HALF) >> at / HALF * 4 & 15;
}

struct Q4_0 {
    static constexpr u32 ELEMENTS = 32, BYTES = 18, ALIGN = 2;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32, u32 at, float (&out)[N]) {
        scale_each(out, load_nibbles<16, N, ALIGN>(block + 2, at), half_at<ALIGN>(block), 8);
    }
};

struct Q4_1 {
    static constexpr u32 ELEMENTS = 32, BYTES = 20, ALIGN = 4;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32, u32 at, float (&out)[N]) {
        scale_each_from(out, load_nibbles<16, N, ALIGN>(block + 4, at), half_at<ALIGN>(block), half_at<ALIGN>(block + 2));
    }
};

struct Q5_0 {
    static constexpr u32 ELEMENTS = 32, BYTES = 22, ALIGN = 2;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32, u32 at, float (&out)[N]) {
        const Bytes<N> quants = load_nibbles<16, N, ALIGN>(block + 6, at) | load_bits<N>(block + 2, at) << 4;
        scale_each(out, quants, half_at<ALIGN>(block), 16);
    }
};

struct Q5_1 {
    static constexpr u32 ELEMENTS = 32, BYTES = 24, ALIGN = 8;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32, u32 at, float (&out)[N]) {
        const Bytes<N> quants = load_nibbles<16, N, ALIGN>(block + 8, at) | load_bits<N>(block + 4, at) << 4;
        scale_each_from(out, quants, half_at<ALIGN>(block), half_at<ALIGN>(block + 2));
    }
};

// A signed byte is the unsigned one with its top bit flipped, minus 128.
struct Q8_0 {
    static constexpr u32 ELEMENTS = 32, BYTES = 34, ALIGN = 2;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32, u32 at, float (&out)[N]) {
        scale_each(out, load_bytes<N, ALIGN>(block + 2 + at) ^ 0x80, half_at<ALIGN>(block), 128);
    }
};

struct Q8_1 {
    static constexpr u32 ELEMENTS = 32, BYTES = 36, ALIGN = 4;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32, u32 at, float (&out)[N]) {
        scale_each(out, load_bytes<N, ALIGN>(block + 4 + at) ^ 0x80, half_at<ALIGN>(block), 128);
    }
};

// The levels that nibbles stand for: 16 in four words, each plus 128.
template <u32 A, u32 B, u32 C, u32 D> struct Levels {
    template <u32 N> DEVICE Bytes<N> of(Bytes<N> nibbles) {
        for (u32 &word : nibbles.words) {
            // Four nibbles side by side choose four of the first eight levels and four of the last eight; their top bits which of the two.
            const u32 chosen = permute(word | word >> 4, 0, 0x4420);
            const u32 low = permute(A, B, chosen & 0x7777), high = permute(C, D, chosen & 0x7777);
            word = permute(low, high, 0x3210 | (chosen & 0x8888) >> 1);
        }
        return nibbles;
    }
};

// -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113.
typedef Levels<0x3f2d1801, 0x766a5d4f, 0xa6998d81, 0xf1d9c5b5> Uneven;
// Twice the values of FP4: 0 1 2 3 4 6 8 12 and their negatives, of which 0 has none.
typedef Levels<0x83828180, 0x8c888684, 0x7d7e7f80, 0x74787a7c> TwiceFp4;

struct IQ4_NL {
    static constexpr u32 ELEMENTS = 32, BYTES = 18, ALIGN = 2;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32, u32 at, float (&out)[N]) {
        scale_each(out, Uneven::of(load_nibbles<16, N, ALIGN>(block + 2, at)), half_at<ALIGN>(block), 128);
    }
};

struct IQ4_XS {
    static constexpr u32 ELEMENTS = 256, BYTES = 136, ALIGN = 8;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        const u32 low = block[4 + run / 2] >> run % 2 * 4 & 15, high = block[2 + run / 4] >> run % 4 * 2 & 3;
        const Bytes<N> levels = Uneven::of(load_nibbles<16, N, ALIGN>(block + 8 + 16 * run, at));
        scale_each(out, levels, half_at<ALIGN>(block) * number(low | high << 4, 0, 32), 128);
    }
};

struct MXFP4 {
    static constexpr u32 ELEMENTS = 32, BYTES = 17, ALIGN = 1;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32, u32 at, float (&out)[N]) {
        // Half of 2^(e - 127), a denormal for e < 2; 255 is no NaN.
        const u32 exponent = block[0];
        const float scale = float_of(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
        scale_each(out, TwiceFp4::of(load_nibbles<16, N, ALIGN>(block + 1, at)), scale, 128);
    }
};

struct NVFP4 {
    static constexpr u32 ELEMENTS = 64, BYTES = 36, ALIGN = 4;
    // Half of an unsigned E4M3 (bias 7): the top bit is ignored, and 0x7f is 0, but 0xff is not.
    DEVICE float half_e4m3(u32 code) {
        // The product moves the exponent from bias 7 to bias 127, less one, of denormals, too.
        return code == 0x7f ? 0.0f : float_of((code & 0x7f) << 20) * float_of((127 + 120 - 1) << 23);
    }
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        const u32 group = 2 * run + at / 16;
        const Bytes<N> levels = TwiceFp4::of(load_nibbles<8, N, ALIGN>(block + 4 + 8 * group, at % 16));
        scale_each(out, levels, half_e4m3(block[group]), 128);
    }
};
