// Conversion between dtypes: bit for bit what crates/kernels/src/cast/scalar.rs gives. The pairs that models are converted between have a kernel of
// their own, by way of float32; `cast_any` serves all others.
#include "format.h"

struct Bool {
    typedef u8 Code;
    DEVICE u32 decode(u8 code) { return code != 0 ? bits_of(1.0f) : 0; }
};

// What float32 does not hold goes through it rounded to odd, toward zero and with the last bit set if anything was lost: so that a float of at most
// half its precision is rounded once.
struct F64 {
    typedef u64 Code;

    DEVICE u32 decode(u64 code) {
        const u32 sign = (u32)(code >> 32) & SIGN;
        const u64 magnitude = code & ~TOP, endless = 0x7ffull << 52;
        const i32 exponent = (i32)(magnitude >> 52) - 1023;
        if (magnitude > endless) return sign | QUIET_NAN | ((u32)(magnitude >> 29) & 0x3fffff);
        if (magnitude == endless) return sign | INFINITE;
        if (magnitude == 0) return sign;
        if (exponent >= 128) return sign | (INFINITE - 1);
        if (exponent >= -126) {
            return sign | (u32)((magnitude >> 29) - (896ull << 23)) | (u32)(magnitude << 35 != 0);
        }
        const u64 digits = (magnitude & ((1ull << 52) - 1)) | 1ull << 52;
        const i32 wanted = 29 - 126 - exponent, shift = wanted < 63 ? wanted : 63;
        const u64 kept = digits >> shift;
        return sign | (u32)kept | (u32)(kept << shift != digits);
    }

    DEVICE u32 overflow(bool) { return 0; }
    DEVICE u64 encode(u32 bits, u32) {
        if (!is_nan(bits)) return bits_of_double((double)float_of(bits));
        return (u64)(bits & SIGN) << 32 | 0x7ff8ull << 48 | (u64)(bits & 0x7fffff) << 29;
    }
};

// An integer of more than 16 bits.
template <class T, class SIGNED> struct Long {
    typedef T Code;

    DEVICE u32 decode(T code) {
        const bool negative = (SIGNED)code < 0;
        const u64 magnitude = negative ? 0 - (u64)(SIGNED)code : (u64)code;
        const i32 length = 64 - __clzll((i64)magnitude), excess = length > 24 ? length - 24 : 0;
        const u64 kept = magnitude >> excess, odd = kept | (kept << excess != magnitude);
        // Both factors are exact, and so is their product.
        return bits_of((float)odd * float_of((u32)(127 + excess) << 23)) | (negative ? SIGN : 0);
    }

    // Toward zero; what is too large gives the end of the range, and NaN nothing.
    DEVICE u32 overflow(bool) { return 0; }
    DEVICE T encode(u32 bits, u32) {
        const float value = float_of(bits), end = (float)(1ull << (8 * sizeof(T) - 1));
        if (is_nan(bits)) return 0;
        if (value >= end) return (T)~0ull >> 1;
        return value < -end ? (T)1 << (8 * sizeof(T) - 1) : (T)(SIGNED)value;
    }
};

typedef Long<u32, i32> I32;
typedef Long<u64, i64> I64;

// A byte that a float32 becomes.
template <i32 LOW, i32 HIGH> struct Byte {
    typedef u8 Code;
    DEVICE u32 overflow(bool) { return 0; }
    DEVICE u8 encode(u32 bits, u32) {
        const float value = float_of(bits);
        if (is_nan(bits)) return 0;
        return (u8)(value <= LOW ? LOW : value >= HIGH ? HIGH : (i32)value);
    }
};

template <class From, class To> struct Pair {
    DEVICE typename To::Code convert(typename From::Code code, u32 overflow) { return To::encode(From::decode(code), overflow); }
};

// A float of 8 bits, each value of which one of 16 bits has: there is nothing to round.
template <class From, class To> struct Exact {
    static constexpr u32 WIDER = To::MANTISSA - From::MANTISSA, QUIET_CODE = To::INFINITY_CODE | 1u << (To::MANTISSA - 1);
    // A denormal of `From` may be one of `To`.
    static constexpr bool IS_DEEP = From::BIAS + From::MANTISSA > To::BIAS;

    DEVICE u16 convert(u8 code, u32) {
        const u32 magnitude = code & (From::SIGN_BIT - 1), sign = (u32)(code & From::SIGN_BIT) << 8;
        const u32 bits = bits_of(float_of(magnitude << From::SHIFT) * float_of((127 + From::REBIAS) << 23));
        u32 wider = (bits - (To::REBIAS << 23)) >> To::SHIFT;
        if (IS_DEEP && To::REBIAS != 0) {
            const u32 step = (To::REBIAS + 1 - To::MANTISSA + 23) << 23;
            wider = bits < (To::REBIAS + 1) << 23 ? bits_of(float_of(bits) + float_of(step)) - step : wider;
        } else if (To::REBIAS != 0) {
            wider = magnitude == 0 ? 0 : wider;
        }
        if (From::SPECIALS == IEEE && magnitude >= From::INFINITY_CODE) {
            wider = To::INFINITY_CODE | magnitude << WIDER | (magnitude > From::INFINITY_CODE ? QUIET_CODE : 0);
        }
        if (From::SPECIALS == ALL_ONES_NAN && magnitude > From::LARGEST) wider = QUIET_CODE;
        if (From::SPECIALS == NEGATIVE_ZERO_NAN && code == From::SIGN_BIT) return QUIET_CODE;
        return (u16)(wider | sign);
    }
};

template <> struct Pair<E4M3FN, F16> : Exact<E4M3FN, F16> {};
template <> struct Pair<E4M3FNUZ, F16> : Exact<E4M3FNUZ, F16> {};
template <> struct Pair<E5M2, F16> : Exact<E5M2, F16> {};
template <> struct Pair<E5M2FNUZ, F16> : Exact<E5M2FNUZ, F16> {};
template <> struct Pair<E4M3FN, BF16> : Exact<E4M3FN, BF16> {};
template <> struct Pair<E4M3FNUZ, BF16> : Exact<E4M3FNUZ, BF16> {};
template <> struct Pair<E5M2, BF16> : Exact<E5M2, BF16> {};
template <> struct Pair<E5M2FNUZ, BF16> : Exact<E5M2FNUZ, BF16> {};

// bfloat16 has each value of these, and its bits are the upper half of float32's.
template <class From> struct UpperHalf {
    DEVICE u16 convert(u8 code, u32) { return (u16)(From::decode(code) >> 16); }
};

template <> struct Pair<U8, BF16> : UpperHalf<U8> {};
template <> struct Pair<I8, BF16> : UpperHalf<I8> {};
template <> struct Pair<E8M0FNU, BF16> : UpperHalf<E8M0FNU> {};

// float32 takes these by the processor's own rounding, to nearest even.
template <> struct Pair<F64, F32> {
    DEVICE u32 convert(u64 code, u32 overflow) {
        const u64 magnitude = code & ~TOP, endless = 0x7ffull << 52;
        if (magnitude >= endless) return F64::decode(code);
        const u32 bits = bits_of((float)double_of(code));
        return (bits & ~SIGN) == INFINITE ? overflow | (bits & SIGN) : bits;
    }
};

template <class T, class SIGNED> struct Pair<Long<T, SIGNED>, F32> {
    DEVICE u32 convert(T code, u32) { return bits_of((float)(SIGNED)code); }
};

// Sixteen bytes at a time where both addresses allow it, and what is left one by one.
template <class From, class To> DEVICE void cast(const u8 *from, u8 *to, u64 count, bool saturate) {
    const u32 overflow = To::overflow(saturate);
    typedef typename From::Code Source;
    typedef typename To::Code Target;
    constexpr u32 WIDTH = 16 / (sizeof(Source) > sizeof(Target) ? sizeof(Source) : sizeof(Target));
    typedef Vector<Source, WIDTH> Sources;
    typedef Vector<Target, WIDTH> Targets;
    u64 done = 0;
    if (is_aligned<Sources>(from) && is_aligned<Targets>(to)) {
        done = count / WIDTH * WIDTH;
        FOR_EACH_ITEM(item, count / WIDTH) {
            const Sources sources = ((const Sources *)from)[item];
            Targets targets;
#pragma unroll
            for (u32 at = 0; at < WIDTH; at++) targets.at[at] = Pair<From, To>::convert(sources.at[at], overflow);
            ((Targets *)to)[item] = targets;
        }
    }
    FOR_EACH_ITEM(item, count - done) {
        const u64 at = done + item;
        store<Target>(to + at * sizeof(Target), Pair<From, To>::convert(load<Source>(from + at * sizeof(Source)), overflow));
    }
}

#define CAST(From, from_name, To, to_name) \
    KERNEL(cast_##from_name##_##to_name, count * sizeof(From::Code), count * sizeof(To::Code), u32 saturate) { \
        cast<From, To>(from, to, count, saturate != 0); \
    }

#define CAST_FROM_EACH(To, to_name) \
    CAST(E4M3FN, e4m3fn, To, to_name) \
    CAST(E4M3FNUZ, e4m3fnuz, To, to_name) \
    CAST(E5M2, e5m2, To, to_name) \
    CAST(E5M2FNUZ, e5m2fnuz, To, to_name) \
    CAST(E8M0FNU, e8m0fnu, To, to_name) \
    CAST(F64, f64, To, to_name) \
    CAST(Bool, bool, To, to_name) \
    CAST(I8, i8, To, to_name) \
    CAST(U8, u8, To, to_name) \
    CAST(I16, i16, To, to_name) \
    CAST(I32, i32, To, to_name) \
    CAST(I64, i64, To, to_name)

CAST_FROM_EACH(F32, f32)
CAST_FROM_EACH(F16, f16)
CAST_FROM_EACH(BF16, bf16)

#define CAST_TO_EACH(From, from_name) \
    CAST(From, from_name, E4M3FN, e4m3fn) \
    CAST(From, from_name, E4M3FNUZ, e4m3fnuz) \
    CAST(From, from_name, E5M2, e5m2) \
    CAST(From, from_name, E5M2FNUZ, e5m2fnuz) \
    CAST(From, from_name, F64, f64)

CAST_TO_EACH(F32, f32)
CAST_TO_EACH(F16, f16)
CAST_TO_EACH(BF16, bf16)

CAST(F32, f32, F16, f16)
CAST(F32, f32, BF16, bf16)
CAST(F16, f16, F32, f32)
CAST(F16, f16, BF16, bf16)
CAST(BF16, bf16, F32, f32)
CAST(BF16, bf16, F16, f16)

typedef Byte<-128, 127> ToI8;
typedef Byte<0, 255> ToU8;
CAST(F32, f32, ToI8, i8)
CAST(F32, f32, ToU8, u8)
CAST(F32, f32, I32, i32)
CAST(F32, f32, I64, i64)

KERNEL(cast_any, (count * FORMAT_BITS(from_format) + 7) / 8, (count * FORMAT_BITS(to_format) + 7) / 8, u64 from_format, u64 to_format, u32 saturate) {
    const Format source = unpacked(from_format), target = unpacked(to_format);
    const u32 group = group_of(source, target);
    FOR_EACH_ITEM(item, count / group) {
        put_group(target, to, item * group, group, [&](u64 index) {
            return converted(source, target, code_at(source, from, index), saturate != 0);
        });
    }
}
