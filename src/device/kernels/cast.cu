// Conversion between dtypes: bit for bit what src/cast/scalar.rs gives.
#include "common.h"

// Sixteen bytes at a time where both addresses allow it, and what is left one by one.
template <class From, class To> DEVICE void cast(const u8 *from, u8 *to, u64 count, bool saturate) {
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
            for (u32 at = 0; at < WIDTH; at++) targets.at[at] = To::encode(From::decode(sources.at[at]), saturate);
            ((Targets *)to)[item] = targets;
        }
    }
    FOR_EACH_ITEM(item, count - done) {
        const u64 at = done + item;
        store<Target>(to + at * sizeof(Target), To::encode(From::decode(load<Source>(from + at * sizeof(Source))), saturate));
    }
}

#define CAST(From, from_name, To, to_name) \
    KERNEL(cast_##from_name##_##to_name, count * sizeof(From::Code), count * sizeof(To::Code), u32 saturate) { \
        cast<From, To>(from, to, count, saturate != 0); \
    }

CAST(BF16, bf16, F32, f32)
CAST(F32, f32, BF16, bf16)
CAST(F16, f16, F32, f32)
CAST(F32, f32, F16, f16)
CAST(E4M3FN, e4m3fn, BF16, bf16)
CAST(BF16, bf16, E4M3FN, e4m3fn)
