// What the kernels share: their form, which bytes a thread takes, loads and stores, and the small floats.
//
// This is plain C++ for two compilers. NVRTC makes `kernels.ptx` of it (tools/build_kernels.py); the host's compiler, with tests/fake_cuda/host.h in
// front, makes functions that the stand-in driver calls. Both have to give the bits of the scalar code in crates/kernels/src/cast and
// crates/kernels/src/quant: so a multiplication and an addition are never one (--fmad=false), denormals stay, and NaN, of which a GPU knows only one,
// is made by integer arithmetic. No shared memory and no barriers: the threads of a launch know nothing of each other.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;

#define DEVICE static __device__ __forceinline__

// A kernel that reads `from` and writes `to`, for `count` elements or blocks; more parameters follow. `reads` and `writes` are the bytes that it
// may use of them, as expressions of the parameters: the stand-in driver checks them, PTX does without.
#ifndef KERNEL
#define KERNEL(name, reads, writes, ...) \
    extern "C" __global__ void name(const u8 *__restrict__ from, u8 *__restrict__ to, u64 count __VA_OPT__(, ) __VA_ARGS__)
#endif

// A thread takes the item of its number, and then each that lies a multiple of all threads behind it.
DEVICE u64 thread_number() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
DEVICE u64 all_threads() { return (u64)gridDim.x * blockDim.x; }
#define FOR_EACH_ITEM(item, items) _Pragma("unroll 1") for (u64 item = thread_number(); item < (items); item += all_threads())

// Elements that are loaded or stored at once: at most 16 bytes, which lie at a multiple of their size.
template <class T, u32 N> struct alignas(sizeof(T) * N) Vector {
    T at[N];
};

template <class T> DEVICE bool is_aligned(const u8 *address) { return (u64)address % sizeof(T) == 0; }

// A number in memory, at any address: the processor reads one from a multiple of its size only.
template <class T> DEVICE T load(const u8 *address) {
    if (is_aligned<T>(address)) return *(const T *)address;
    T value = 0;
    for (u32 byte = 0; byte < sizeof(T); byte++) value |= (T)((T)address[byte] << (8 * byte));
    return value;
}

template <class T> DEVICE void store(u8 *address, T value) {
    if (is_aligned<T>(address)) {
        *(T *)address = value;
        return;
    }
    for (u32 byte = 0; byte < sizeof(T); byte++) address[byte] = (u8)(value >> (8 * byte));
}

// Memory that a kernel reads besides `from`.
struct Region {
    const u8 *start;
    u64 bytes;
};

// The bits of a float, and the float of bits.
DEVICE u32 bits_of(float value) {
    union {
        float value;
        u32 bits;
    } both = {value};
    return both.bits;
}

DEVICE float float_of(u32 bits) {
    union {
        u32 bits;
        float value;
    } both = {bits};
    return both.value;
}

DEVICE u64 bits_of_double(double value) {
    union {
        double value;
        u64 bits;
    } both = {value};
    return both.bits;
}

DEVICE double double_of(u64 bits) {
    union {
        u64 bits;
        double value;
    } both = {bits};
    return both.value;
}

constexpr u32 SIGN = 0x80000000, INFINITE = 0x7f800000, QUIET = 0x00400000, QUIET_NAN = INFINITE | QUIET;

DEVICE bool is_nan(u32 bits) { return (bits & ~SIGN) > INFINITE; }
DEVICE u32 quieted(u32 bits) { return is_nan(bits) ? bits | QUIET : bits; }

// What a format does with the codes at the end of its range; as in crates/kernels/src/cast/small_float.rs, and in that order.
enum Specials : u32 { IEEE, ALL_ONES_NAN, NEGATIVE_ZERO_NAN, NO_SPECIALS, POWER_OF_TWO };

// A float of at most 16 bits, by way of the bits of float32, which has all of its values.
template <class T, u32 EXPONENT_BITS, u32 MANTISSA_BITS, u32 BIAS_OF_EXPONENT, Specials SPECIALS_OF_FORMAT> struct Small {
    typedef T Code;
    static constexpr u32 EXPONENT = EXPONENT_BITS, MANTISSA = MANTISSA_BITS, BIAS = BIAS_OF_EXPONENT;
    static constexpr Specials SPECIALS = SPECIALS_OF_FORMAT;
    static constexpr u32 SIGN_BIT = 1u << (EXPONENT + MANTISSA), SHIFT = 23 - MANTISSA, REBIAS = 127 - BIAS;
    static constexpr u32 INFINITY_CODE = ((1u << EXPONENT) - 1) << MANTISSA;
    static constexpr u32 LARGEST = SPECIALS == IEEE ? INFINITY_CODE - 1 : SPECIALS == ALL_ONES_NAN ? SIGN_BIT - 2 : SIGN_BIT - 1;
    // The first float32 that is rounded beyond the largest value: half a step above it, or behind that where a tie goes down, to an even code.
    static constexpr u32 FIRST_BEYOND = (LARGEST << SHIFT) + (REBIAS << 23) + (1u << (SHIFT - 1)) + (LARGEST % 2 == 0);
    // Processors convert between this one and float32 by themselves, all but NaNs.
    static constexpr bool IS_F16 = EXPONENT == 5 && MANTISSA == 10;

    // A NaN may come out signalling: whoever encodes it makes it quiet.
    DEVICE u32 decode(T code) {
        const u32 magnitude = code & (SIGN_BIT - 1), sign = (code & SIGN_BIT) != 0 ? SIGN : 0;
        u32 bits = magnitude << SHIFT;
#ifdef __CUDA_ARCH__
        if (IS_F16) {
            float value;
            asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)code));
            return magnitude > INFINITY_CODE ? sign | INFINITE | bits : bits_of(value);
        }
#endif
        // The digits in their place, denormals among them; the product with a power of two is exact.
        if (REBIAS != 0) bits = bits_of(float_of(bits) * float_of((127 + REBIAS) << 23));
        if (SPECIALS == IEEE && magnitude >= INFINITY_CODE) bits = INFINITE | magnitude << SHIFT;
        if (SPECIALS == ALL_ONES_NAN && magnitude > LARGEST) bits = QUIET_NAN;
        if (SPECIALS == NEGATIVE_ZERO_NAN && code == SIGN_BIT) return QUIET_NAN;
        return bits | sign;
    }

    // What is too large becomes this; found once, in front of a loop.
    DEVICE u32 overflow(bool saturate) {
        return saturate ? LARGEST : SPECIALS == IEEE ? INFINITY_CODE : SPECIALS == ALL_ONES_NAN ? SIGN_BIT - 1 : SIGN_BIT;
    }

    // The code of a float32, which may be rounded to odd: to nearest, ties to even. Both ways are computed and one is taken, as threads do it anyway.
    DEVICE T encode(u32 bits, u32 overflow) {
        const u32 magnitude = bits & ~SIGN, sign = (bits & SIGN) != 0 ? SIGN_BIT : 0;
        u32 code = (magnitude + (1u << (SHIFT - 1)) - 1 + (magnitude >> SHIFT & 1) - (REBIAS << 23)) >> SHIFT;
        const u32 nan = SPECIALS == IEEE           ? INFINITY_CODE | ((magnitude | QUIET) >> SHIFT & ((1u << MANTISSA) - 1))
                        : SPECIALS == ALL_ONES_NAN ? SIGN_BIT - 1
                                                   : SIGN_BIT;
        // Infinity is no overflow where there is room for it: in 16 bits and more.
        const bool endless = SPECIALS == IEEE && sizeof(T) > 1 && magnitude == INFINITE;
        const u32 beyond = magnitude > INFINITE ? nan : endless ? INFINITY_CODE : overflow;
#ifdef __CUDA_ARCH__
        if (IS_F16) {
            u16 rounded;
            asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(float_of(bits)));
            return (T)(magnitude < FIRST_BEYOND ? rounded : beyond | sign);
        }
#endif
        if (REBIAS != 0) {
            // The sum has the smallest step of the denormals in its last digit, and is rounded there.
            const u32 step = (REBIAS + 1 - MANTISSA + 23) << 23, denormal = bits_of(float_of(magnitude) + float_of(step)) - step;
            code = magnitude < (REBIAS + 1) << 23 ? denormal : code;
        }
        code = magnitude < FIRST_BEYOND ? code : beyond;
        return (T)(SPECIALS == NEGATIVE_ZERO_NAN && code == 0 ? 0 : code | sign);
    }

    // The same of what is no NaN: four instructions where rounding by itself leads to infinity.
    DEVICE T encode_number(u32 bits, u32 overflow) {
        if (SPECIALS == IEEE && sizeof(T) > 1 && REBIAS == 0 && overflow == INFINITY_CODE)
            return (T)((bits + (1u << (SHIFT - 1)) - 1 + (bits >> SHIFT & 1)) >> SHIFT);
        return encode(bits, overflow);
    }
};

typedef Small<u16, 5, 10, 15, IEEE> F16;
typedef Small<u16, 8, 7, 127, IEEE> BF16;
typedef Small<u8, 4, 3, 7, ALL_ONES_NAN> E4M3FN;
typedef Small<u8, 4, 3, 8, NEGATIVE_ZERO_NAN> E4M3FNUZ;
typedef Small<u8, 5, 2, 15, IEEE> E5M2;
typedef Small<u8, 5, 2, 16, NEGATIVE_ZERO_NAN> E5M2FNUZ;

struct F32 {
    typedef u32 Code;
    DEVICE u32 decode(u32 code) { return code; }
    DEVICE u32 overflow(bool saturate) { return saturate ? INFINITE - 1 : INFINITE; }
    DEVICE u32 encode(u32 bits, u32) { return quieted(bits); }
    DEVICE u32 encode_number(u32 bits, u32) { return bits; }
};

struct E8M0FNU {
    typedef u8 Code;
    // 2^-127 is a denormal.
    DEVICE u32 decode(u8 code) { return code == 0xff ? QUIET_NAN : code == 0 ? QUIET : (u32)code << 23; }
};

// An integer of at most 16 bits.
template <class T, class SIGNED> struct Short {
    typedef T Code;
    DEVICE u32 decode(T code) { return bits_of((float)(SIGNED)code); }
};

typedef Short<u8, u8> U8;
typedef Short<u8, i8> I8;
typedef Short<u16, u16> U16;
typedef Short<u16, i16> I16;
