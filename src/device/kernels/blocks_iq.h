// Formats whose elements are points of a grid, eight or four at a time. As crates/kernels/src/quant/iq.rs; the rows of `grids.h` are those of
// crates/kernels/src/quant/grids.bin.
#pragma once
#include "blocks.h"
#include "grids.h"

// Four of the eight elements of a row, of two bits each, as levels: the four bytes of `levels`.
DEVICE u32 of_two_bits(u32 row, u32 half, u32 levels) {
    const u32 pairs = row >> 8 * half & 0xff, nibbles = (pairs | pairs << 4) & 0x0f0f;
    return permute(levels, 0, (nibbles | nibbles << 2) & 0x3333);
}

constexpr u32 LEVELS_IQ1 = 0x00100800, LEVELS_IQ2 = 0x002b1908;

// Four bytes from 1 to 127, negative where a bit of `signs` is set, plus 128.
DEVICE u32 with_signs(u32 bytes, u32 signs) {
    const u32 negative = (signs & 15) * 0x00204081u & 0x01010101u;
    return ((bytes ^ negative * 0xff) + negative) ^ 0x80808080u;
}

// Seven signs, and an eighth that makes the number of negative elements even.
DEVICE u32 even_signs(u32 bits) {
    const u32 signs = bits & 127, odd = 0x6996 >> ((signs ^ signs >> 4) & 15) & 1;
    return signs | odd << 7;
}

// Elements of IQ2: of one row, whose signs are eight bits.
template <u32 N> DEVICE Bytes<N> of_row(u32 row, u32 signs, u32 at) {
    Bytes<N> quants;
    for (u32 i = 0; i < N / 4; i++) {
        const u32 half = (at / 4 + i) % 2;
        quants.words[i] = with_signs(of_two_bits(row, half, LEVELS_IQ2), signs >> 4 * half);
    }
    return quants;
}

struct IQ2_XXS {
    static constexpr u32 ELEMENTS = 256, BYTES = 66, ALIGN = 2;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        const u32 index = block[2 + 8 * run + at / 8], word = load_aligned<u32, ALIGN>(block + 6 + 8 * run);
        const float scale = half_at<ALIGN>(block) * (0.5f + number(word >> 28, 0, 0)) * 0.25f;
        scale_each(out, of_row<N>(GRID_IQ2_XXS[index], even_signs(word >> 7 * (at / 8)), at), scale, 128);
    }
};

struct IQ2_XS {
    static constexpr u32 ELEMENTS = 256, BYTES = 74, ALIGN = 2;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        const u32 word = load_aligned<u16, ALIGN>(block + 2 + 8 * run + at / 8 * 2), quant = block[66 + run] >> at / 16 * 4 & 15;
        const float scale = half_at<ALIGN>(block) * (0.5f + number(quant, 0, 0)) * 0.25f;
        scale_each(out, of_row<N>(GRID_IQ2_XS[word & 511], even_signs(word >> 9), at), scale, 128);
    }
};

struct IQ2_S {
    static constexpr u32 ELEMENTS = 256, BYTES = 82, ALIGN = 2;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        const u32 group = 4 * run + at / 8, high = block[66 + run] >> at / 8 * 2 & 3, quant = block[74 + run] >> at / 16 * 4 & 15;
        const float scale = half_at<ALIGN>(block) * (0.5f + number(quant, 0, 0)) * 0.25f;
        scale_each(out, of_row<N>(GRID_IQ2_S[block[2 + group] | high << 8], block[34 + group], at), scale, 128);
    }
};

struct IQ3_XXS {
    static constexpr u32 ELEMENTS = 256, BYTES = 98, ALIGN = 2;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        const u32 word = load_aligned<u32, ALIGN>(block + 66 + 4 * run), signs = even_signs(word >> 7 * (at / 8)) >> at % 8;
        const float scale = half_at<ALIGN>(block) * (0.5f + number(word >> 28, 0, 0)) * 0.5f;
        Bytes<N> quants;
        for (u32 i = 0; i < N / 4; i++) {
            const u32 row = GRID_IQ3_XXS[block[2 + 8 * run + at / 4 + i]];
            quants.words[i] = with_signs(permute(0x1c140c04, 0x3e342c24, row), signs >> 4 * i);
        }
        scale_each(out, quants, scale, 128);
    }
};

struct IQ3_S {
    static constexpr u32 ELEMENTS = 256, BYTES = 110, ALIGN = 2;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        const u32 ninths = block[66 + run] >> at / 4, signs = block[74 + 4 * run + at / 8] >> at % 8;
        const u32 quant = block[106 + run / 2] >> run % 2 * 4 & 15;
        Bytes<N> quants;
        for (u32 i = 0; i < N / 4; i++) {
            const u32 row = GRID_IQ3_S[block[2 + 8 * run + at / 4 + i] | (ninths >> i & 1) << 8];
            quants.words[i] = with_signs(permute(0x07050301, 0x0f0d0b09, row), signs >> 4 * i);
        }
        scale_each(out, quants, half_at<ALIGN>(block) * number(1 + 2 * quant, 0, 0), 128);
    }
};

// Elements of IQ1 plus or minus one eighth, in eighths: the levels are eight times the elements, plus eight.
template <u32 N> DEVICE void scale_shifted(float (&out)[N], u32 index, bool negative, u32 at, float scale) {
    const u32 row = GRID_IQ1[index];
    Bytes<N> quants;
    for (u32 i = 0; i < N / 4; i++) quants.words[i] = of_two_bits(row, (at / 4 + i) % 2, LEVELS_IQ1) + (negative ? 0 : 0x02020202);
    scale_each(out, quants, scale, 9);
}

struct IQ1_S {
    static constexpr u32 ELEMENTS = 256, BYTES = 50, ALIGN = 2;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        const u32 word = load_aligned<u16, ALIGN>(block + 34 + 2 * run), high = word >> at / 8 * 3 & 7;
        const float scale = half_at<ALIGN>(block) * number(2 * (word >> 12 & 7) + 1, 0, 0) * 0.125f;
        scale_shifted(out, block[2 + 4 * run + at / 8] | high << 8, word >> 15 != 0, at, scale);
    }
};

struct IQ1_M {
    static constexpr u32 ELEMENTS = 256, BYTES = 56, ALIGN = 8;
    template <u32 ALIGN, u32 N> DEVICE void decode(const u8 *block, u32 run, u32 at, float (&out)[N]) {
        const u32 first = load_aligned<u32, ALIGN>(block + 48), second = load_aligned<u32, ALIGN>(block + 52);
        const u32 whole = (first >> 12 & 0xf) | (first >> 24 & 0xf0) | (second >> 4 & 0xf00) | (second >> 16 & 0xf000);
        const u32 quant = (run < 4 ? first : second) >> (run / 2 % 2 * 16 + (run % 2 * 2 + at / 16) * 3) & 7;
        const u32 group = 4 * run + at / 8, nibble = block[32 + group / 2] >> group % 2 * 4;
        const float scale = half((u16)whole) * number(2 * quant + 1, 0, 0) * 0.125f;
        scale_shifted(out, block[group] | (nibble & 7) << 8, (nibble & 8) != 0, at, scale);
    }
};
