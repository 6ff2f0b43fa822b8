// Any real dtype, described by numbers: what crates/kernels/src/cast/small_float.rs and scalar.rs do, for the pairs that have no kernel of their own.
// An element is taken apart into a number that holds each of them, and rounded once when it is put together.
#pragma once

#include "common.h"

// `cast::description` packs one into 64 bits.
enum Kind : u32 { FLOAT, UNSIGNED, SIGNED, BOOL };

struct Format {
    u32 bits;
    Kind kind;
    u32 exponent_bits, mantissa_bits;
    i32 bias;
    Specials specials;

    __device__ __forceinline__ u64 sign_bit() const { return 1ull << (exponent_bits + mantissa_bits); }
    __device__ __forceinline__ u64 infinity() const { return ((1ull << exponent_bits) - 1) << mantissa_bits; }
    __device__ __forceinline__ u64 largest() const {
        return specials == IEEE           ? infinity() - 1
               : specials == ALL_ONES_NAN ? sign_bit() - 2
               : specials == POWER_OF_TWO ? 254
                                          : sign_bit() - 1;
    }
    // The power of two that the last digit of the smallest numbers counts.
    __device__ __forceinline__ i32 lowest() const { return 1 - bias - (i32)mantissa_bits; }
};

#define FORMAT_BITS(packed) ((packed) & 0xff)

DEVICE Format unpacked(u64 packed) {
    return {(u32)(packed & 0xff),       (Kind)(packed >> 8 & 0xff),    (u32)(packed >> 16 & 0xff),
            (u32)(packed >> 24 & 0xff), (i32)(packed >> 32 & 0xffff), (Specials)(packed >> 48 & 0xff)};
}

enum Class : u32 { ZERO, FINITE, ENDLESS, NO_NUMBER };

// `digits` times 2 to the power of `exponent`; of a NaN its payload, moved to the top.
struct Number {
    Class is;
    bool negative;
    u64 digits;
    i32 exponent;
};

constexpr u64 TOP = 1ull << 63;

DEVICE Number decoded(const Format &format, u64 code) {
    if (format.kind != FLOAT) {
        const u32 unused = 64 - format.bits;
        const bool negative = format.kind == SIGNED && (code >> (format.bits - 1) & 1) != 0;
        u64 digits = format.kind == BOOL ? code != 0 : code;
        if (negative) digits = (0 - (code << unused)) >> unused;
        return {digits == 0 ? ZERO : FINITE, negative, digits, 0};
    }
    if (format.specials == POWER_OF_TWO) {
        if (code == 0xff) return {NO_NUMBER, false, TOP, 0};
        return {FINITE, false, 1, (i32)code - format.bias};
    }
    const bool negative = (code & format.sign_bit()) != 0;
    const u64 magnitude = code & (format.sign_bit() - 1);
    if (format.specials == IEEE && magnitude == format.infinity()) return {ENDLESS, negative, 0, 0};
    if (format.specials == IEEE && magnitude > format.infinity()) {
        return {NO_NUMBER, negative, magnitude << (64 - format.mantissa_bits) | TOP, 0};
    }
    if (format.specials == ALL_ONES_NAN && magnitude > format.largest()) return {NO_NUMBER, negative, TOP, 0};
    if (format.specials == NEGATIVE_ZERO_NAN && negative && magnitude == 0) return {NO_NUMBER, false, TOP, 0};
    if (magnitude == 0) return {ZERO, negative, 0, 0};
    const u64 implicit = 1ull << format.mantissa_bits, fraction = magnitude & (implicit - 1);
    const i32 field = (i32)(magnitude >> format.mantissa_bits);
    if (field == 0) return {FINITE, negative, fraction, format.lowest()};
    return {FINITE, negative, fraction | implicit, format.lowest() + field - 1};
}

DEVICE u64 with_sign(const Format &format, u64 magnitude, bool negative) {
    const bool has = magnitude != 0 || format.specials != NEGATIVE_ZERO_NAN;
    return negative && has ? magnitude | format.sign_bit() : magnitude;
}

DEVICE u64 overflow(const Format &format, bool negative, bool saturate) {
    if (saturate || format.specials == NO_SPECIALS) return with_sign(format, format.largest(), negative);
    if (format.specials == IEEE) return with_sign(format, format.infinity(), negative);
    return format.specials == ALL_ONES_NAN ? with_sign(format, format.sign_bit() - 1, negative) : format.sign_bit();
}

// `digits` over 2 to the power of `shift`, to nearest even.
DEVICE u64 rounded(u64 digits, i32 shift) {
    if (shift <= 0) return digits << -shift;
    if (shift > 64) return 0;
    const u64 half = 1ull << (shift - 1), kept = shift == 64 ? 0 : digits >> shift, rest = digits & (half * 2 - 1);
    return kept + (rest > half || (rest == half && (kept & 1) != 0));
}

DEVICE u64 power_of_two(const Format &format, const Number &number, bool saturate) {
    const u64 limit = saturate ? format.largest() : 0xff;
    if (number.negative || number.is == ZERO || number.is == NO_NUMBER) return 0xff;
    if (number.is == ENDLESS) return limit;
    const i32 zeros = __clzll((i64)number.digits), power = number.exponent + 63 - zeros + format.bias;
    const u64 digits = number.digits << zeros;
    if (power <= 0) return power == 0 && digits != TOP;
    const u64 code = (u64)power + (digits >> 62 & 1);
    return code > format.largest() ? limit : code;
}

DEVICE u64 integer(const Format &format, const Number &number) {
    const u64 all = format.bits == 64 ? ~0ull : (1ull << format.bits) - 1, end = all >> (format.kind == SIGNED);
    const u64 limit = !number.negative ? end : format.kind == SIGNED ? end + 1 : 0;
    u64 magnitude = 0;
    if (number.is == ENDLESS) magnitude = limit;
    if (number.is == FINITE) {
        const i32 exponent = number.exponent;
        if (exponent < 0) {
            magnitude = exponent > -64 ? number.digits >> -exponent : 0;
        } else {
            magnitude = exponent < 64 && number.digits <= ~0ull >> exponent ? number.digits << exponent : limit;
        }
        if (magnitude > limit) magnitude = limit;
    }
    return number.negative ? 0 - magnitude : magnitude;
}

DEVICE u64 encoded(const Format &format, const Number &number, bool saturate) {
    if (format.kind == BOOL) return number.is != ZERO;
    if (format.kind != FLOAT) return integer(format, number);
    if (format.specials == POWER_OF_TWO) return power_of_two(format, number, saturate);
    const bool negative = number.negative;
    if (number.is == ZERO) return with_sign(format, 0, negative);
    if (number.is == ENDLESS) {
        const bool keeps = format.specials == IEEE && (!saturate || format.bits >= 16);
        return keeps ? with_sign(format, format.infinity(), negative) : overflow(format, negative, saturate);
    }
    if (number.is == NO_NUMBER) {
        if (format.specials == NO_SPECIALS) return with_sign(format, 0, negative);
        if (format.specials == NEGATIVE_ZERO_NAN) return format.sign_bit();
        if (format.specials == ALL_ONES_NAN) return with_sign(format, format.sign_bit() - 1, negative);
        return with_sign(format, format.infinity() | (number.digits | TOP) >> (64 - format.mantissa_bits), negative);
    }
    const i32 top = number.exponent + 63 - __clzll((i64)number.digits), lowest = format.lowest();
    const i32 wanted = top - (i32)format.mantissa_bits, quantum = wanted > lowest ? wanted : lowest;
    // A carry out of the digits lands in the exponent, where it belongs; so does the implicit bit.
    const u64 code = ((u64)(quantum - lowest) << format.mantissa_bits) + rounded(number.digits, quantum - number.exponent);
    return code > format.largest() ? overflow(format, negative, saturate) : with_sign(format, code, negative);
}

// From one format to another. Between integers the low bits stay, so that what is too large wraps.
DEVICE u64 converted(const Format &from, const Format &to, u64 code, bool saturate) {
    const Number number = decoded(from, code);
    if (from.kind != FLOAT && (to.kind == UNSIGNED || to.kind == SIGNED)) return number.negative ? 0 - number.digits : number.digits;
    return encoded(to, number, saturate);
}

// Elements that fill whole bytes.
DEVICE u32 group_of(const Format &one, const Format &other) {
    return one.bits == 6 || other.bits == 6 ? 4 : one.bits == 4 || other.bits == 4 ? 2 : 1;
}

// Element `index`; those of less than a byte are packed from the lowest bit up.
DEVICE u64 code_at(const Format &format, const u8 *from, u64 index) {
    switch (format.bits) {
    case 64: return load<u64>(from + index * 8);
    case 32: return load<u32>(from + index * 4);
    case 16: return load<u16>(from + index * 2);
    case 8: return from[index];
    }
    const u64 start = index * format.bits;
    const u32 at = (u32)(start % 8);
    u32 word = from[start / 8];
    if (at + format.bits > 8) word |= (u32)from[start / 8 + 1] << 8;
    return word >> at & ((1u << format.bits) - 1);
}

// Some elements, which begin on a byte and end on one, from `first` on: what `code_of` says of each number.
template <class CodeOf> DEVICE void put_group(const Format &format, u8 *to, u64 first, u32 group, const CodeOf &code_of) {
    u32 packed = 0;
    for (u32 place = 0; place < group; place++) {
        const u64 index = first + place, code = code_of(index);
        switch (format.bits) {
        case 64: store<u64>(to + index * 8, code); break;
        case 32: store<u32>(to + index * 4, (u32)code); break;
        case 16: store<u16>(to + index * 2, (u16)code); break;
        case 8: to[index] = (u8)code; break;
        default: packed |= (u32)(code & ((1u << format.bits) - 1)) << (place * format.bits);
        }
    }
    if (format.bits >= 8) return;
    const u64 start = first * format.bits / 8;
    for (u32 byte = 0; byte < group * format.bits / 8; byte++) to[start + byte] = (u8)(packed >> (8 * byte));
}
