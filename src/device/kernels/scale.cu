// Dequantization by block scales: `data * scale of its block`, in float32, and rounded once: bit for bit what crates/kernels/src/cast/scale.rs gives.
#include "format.h"

// A GPU divides 64 bits in a hundred instructions, and 32 in twenty.
DEVICE u64 quotient(u64 value, u64 divisor) {
    return (value | divisor) >> 32 == 0 ? (u32)value / (u32)divisor : value / divisor;
}

// How a matrix is cut into blocks, each with a scale. Several matrices may lie one behind the other; `rows` is 0 where their blocks do, too.
struct Blocks {
    u64 rows, cols, block_rows, block_cols;

    // The number of the scale of an element.
    __device__ __forceinline__ u64 of(u64 element) const {
        const u64 row = quotient(element, cols), per_row = quotient(cols + block_cols - 1, block_cols);
        u64 stripe = quotient(row, block_rows);
        if (rows != 0) {
            const u64 matrix = quotient(row, rows);
            stripe = matrix * quotient(rows + block_rows - 1, block_rows) + quotient(row - matrix * rows, block_rows);
        }
        return stripe * per_row + quotient(element - row * cols, block_cols);
    }
};

// The scale of this number, of the types that scales of models have.
DEVICE u32 scale_at(const u8 *scales, u64 format, u64 index) {
    if (FORMAT_BITS(format) == 32) return quieted(load<u32>(scales + index * 4));
    if (FORMAT_BITS(format) == 16) return quieted(BF16::decode(load<u16>(scales + index * 2)));
    return unpacked(format).specials == POWER_OF_TWO ? E8M0FNU::decode(scales[index]) : E4M3FN::decode(scales[index]);
}

// A NaN value stays itself, else a NaN scale does, and infinity times zero is the NaN that x86 makes.
DEVICE u32 product(u32 value, u32 scale) {
    const u32 bits = bits_of(float_of(value) * float_of(scale));
    return is_nan(value) ? quieted(value) : is_nan(scale) ? scale : is_nan(bits) ? SIGN | QUIET_NAN : bits;
}

typedef Small<u8, 2, 1, 1, NO_SPECIALS> E2M1FN;

// The value of an element of a vector.
template <class Data, u32 BITS, class Sources> DEVICE u32 value_at(const Sources &sources, u32 at) {
    return Data::decode(BITS == 8 ? sources.at[at] : sources.at[at / 2] >> (at % 2 * 4) & 15);
}

// Sixteen bytes of the result at a time, where they lie in one block and both addresses allow it; else one element after the other.
template <class Data, u32 BITS, class To>
DEVICE void scale(const u8 *from, u8 *to, u64 count, const Region &scales, u64 format, const Blocks &blocks, bool saturate) {
    typedef typename To::Code Target;
    constexpr u32 WIDTH = 16 / sizeof(Target);
    typedef Vector<u8, WIDTH * BITS / 8> Sources;
    typedef Vector<Target, WIDTH> Targets;
    const u32 overflow = To::overflow(saturate);
    if (blocks.cols % WIDTH == 0 && blocks.block_cols % WIDTH == 0 && is_aligned<Sources>(from) && is_aligned<Targets>(to)) {
        FOR_EACH_ITEM(item, count / WIDTH) {
            const Sources sources = ((const Sources *)from)[item];
            const u32 factor = scale_at(scales.start, format, blocks.of(item * WIDTH));
            u32 products[WIDTH];
            bool any_nan = false;
#pragma unroll
            for (u32 at = 0; at < WIDTH; at++) {
                products[at] = bits_of(float_of(value_at<Data, BITS>(sources, at)) * float_of(factor));
                any_nan |= is_nan(products[at]);
            }
            Targets targets;
            if (any_nan) {
#pragma unroll
                for (u32 at = 0; at < WIDTH; at++) targets.at[at] = To::encode(product(value_at<Data, BITS>(sources, at), factor), overflow);
            } else {
#pragma unroll
                for (u32 at = 0; at < WIDTH; at++) targets.at[at] = To::encode_number(products[at], overflow);
            }
            ((Targets *)to)[item] = targets;
        }
        return;
    }
    FOR_EACH_ITEM(item, count) {
        const u8 code = BITS == 8 ? from[item] : from[item / 2] >> (item % 2 * 4) & 15;
        const u32 factor = scale_at(scales.start, format, blocks.of(item));
        store<Target>(to + item * sizeof(Target), To::encode(product(Data::decode(code), factor), overflow));
    }
}

#define SCALE(Data, bits, from_name, To, to_name) \
    KERNEL(scale_##from_name##_##to_name, count * bits / 8, count * sizeof(To::Code), Region scales, u64 scale_format, Blocks blocks, u32 saturate) { \
        scale<Data, bits, To>(from, to, count, scales, scale_format, blocks, saturate != 0); \
    }

#define SCALE_TO_EACH(Data, bits, from_name) \
    SCALE(Data, bits, from_name, F32, f32) \
    SCALE(Data, bits, from_name, F16, f16) \
    SCALE(Data, bits, from_name, BF16, bf16)

SCALE_TO_EACH(E4M3FN, 8, e4m3fn)
SCALE_TO_EACH(I8, 8, i8)
SCALE_TO_EACH(E2M1FN, 4, e2m1fn)

KERNEL(scale_any, (count * FORMAT_BITS(from_format) + 7) / 8, (count * FORMAT_BITS(to_format) + 7) / 8, Region scales, u64 scale_format, Blocks blocks,
       u32 saturate, u64 from_format, u64 to_format) {
    const Format source = unpacked(from_format), target = unpacked(to_format), of_scales = unpacked(scale_format);
    const Format real = {32, FLOAT, 8, 23, 127, IEEE};
    const u32 group = group_of(source, target);
    FOR_EACH_ITEM(item, count / group) {
        put_group(target, to, item * group, group, [&](u64 index) {
            const u32 value = (u32)converted(source, real, code_at(source, from, index), false);
            const u32 factor = (u32)converted(of_scales, real, code_at(of_scales, scales.start, blocks.of(index)), false);
            return converted(real, target, product(value, factor), saturate != 0);
        });
    }
}
