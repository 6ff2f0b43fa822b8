// The kernels of src/device/kernels as functions of the host, in a list of which src/compiled.rs registers each: build.rs puts this in front of
// them. A thread of the device is a call, one after the other.
#pragma once

#define __device__
#define __forceinline__ inline __attribute__((always_inline))

static inline int __clzll(long long number) { return number == 0 ? 64 : __builtin_clzll((unsigned long long)number); }

struct Place {
    unsigned x, y, z;
};
static thread_local Place blockIdx, threadIdx, blockDim, gridDim;

// As in src/kernels.rs.
struct Launch {
    unsigned grid[3], block[3], shared;
    const void *const *parameters;
    const unsigned char *(*read)(const Launch *, unsigned long long, unsigned long);
    unsigned char *(*write)(const Launch *, unsigned long long, unsigned long);
    const void *operation;
    unsigned moves;
};

struct Row {
    const char *name;
    void (*run)(const Launch *);
    const unsigned long *sizes;
    unsigned long count;
    const Row *next;
};
static const Row *rows = nullptr;

#define KERNEL(name, reads, writes, ...) \
    static u64 name##_reads(u64 count __VA_OPT__(, ) __VA_ARGS__) { return reads; } \
    static u64 name##_writes(u64 count __VA_OPT__(, ) __VA_ARGS__) { return writes; } \
    static void name(const u8 *from, u8 *to, u64 count __VA_OPT__(, ) __VA_ARGS__); \
    static const bool name##_is_listed = Form<decltype(name)>::list<name, name##_reads, name##_writes>(#name); \
    static void name(const u8 *from, u8 *to, u64 count __VA_OPT__(, ) __VA_ARGS__)

#include "common.h"

// A parameter of a launch, in memory that the host can use; `failed` where that is not allocated.
template <class T> static T argument(const Launch *launch, unsigned index, bool &) { return *(const T *)launch->parameters[index]; }

template <> Region argument<Region>(const Launch *launch, unsigned index, bool &failed) {
    Region region = *(const Region *)launch->parameters[index];
    region.start = launch->read(launch, (u64)region.start, region.bytes);
    failed |= region.start == nullptr;
    return region;
}

template <unsigned... NUMBERS> struct Numbers {};
template <unsigned N, unsigned... NUMBERS> struct UpTo : UpTo<N - 1, N - 1, NUMBERS...> {};
template <unsigned... NUMBERS> struct UpTo<0, NUMBERS...> {
    typedef Numbers<NUMBERS...> All;
};

template <class T> struct Form;
template <class... More> struct Form<void(const u8 *, u8 *, u64, More...)> {
    typedef void Body(const u8 *, u8 *, u64, More...);
    typedef u64 Bytes(u64, More...);

    template <Body *BODY, Bytes *READS, Bytes *WRITES, unsigned... NUMBERS> static void run(const Launch *launch, Numbers<NUMBERS...>) {
        bool failed = false;
        const u64 count = argument<u64>(launch, 2, failed);
        const u64 from_bytes = READS(count, argument<More>(launch, 3 + NUMBERS, failed)...);
        const u64 to_bytes = WRITES(count, argument<More>(launch, 3 + NUMBERS, failed)...);
        const u8 *from = launch->read(launch, argument<u64>(launch, 0, failed), from_bytes);
        u8 *to = launch->write(launch, argument<u64>(launch, 1, failed), to_bytes);
        if (failed || from == nullptr || to == nullptr || !launch->moves) return;
        gridDim = {launch->grid[0], launch->grid[1], launch->grid[2]};
        blockDim = {launch->block[0], launch->block[1], launch->block[2]};
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
            for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++) {
                BODY(from, to, count, argument<More>(launch, 3 + NUMBERS, failed)...);
            }
        }
    }

    template <Body *BODY, Bytes *READS, Bytes *WRITES> static void run_all(const Launch *launch) {
        run<BODY, READS, WRITES>(launch, typename UpTo<sizeof...(More)>::All());
    }

    template <Body *BODY, Bytes *READS, Bytes *WRITES> static bool list(const char *name) {
        static const unsigned long sizes[] = {8, 8, 8, sizeof(More)...};
        static Row row = {name, run_all<BODY, READS, WRITES>, sizes, 3 + sizeof...(More), nullptr};
        row.next = rows;
        rows = &row;
        return true;
    }
};

extern "C" const Row *fake_cuda_compiled_kernels() { return rows; }
