// The part of the probe that every card from Turing on can run: arithmetic with known answers, tensor
// cores in fp16 and int8, memory. scripts/ptx.sh makes base.ptx of it.

#include <cuda_fp16.h>

#include "tensor.cuh"

// Integer and fp32 arithmetic that goes on from its own results, so that one wrong bit is not lost:
// the last results are compared. Plain IEEE with rounding to nearest and no fused steps but the one
// that is written, so the host knows them (probe/expected.rs).
// One expectation a thread of the block: the integer below, the bits of the fp32 above.
extern "C" __global__ void __launch_bounds__(512) gpufleet_arithmetic(u32 rounds, const u64* expected, GpufleetReport* report) {
    u64 began = gpufleet_now();
    u32 x = threadIdx.x * 2654435761u + 12345u;
    u32 y = ~x;
    // A logistic map with the integer stirred in: it stays within (0, 1) and never falls into a circle.
    // Each goes on from the other, so that what is wrong once in either is wrong in both at the end.
    float f = __fmaf_rn(static_cast<float>(threadIdx.x), 0.0009765625f, 0.25f);
    for (u32 round = 0; round < rounds; round++) {
        x = x * 1664525u + 1013904223u;
        y = __funnelshift_l(y ^ x, y ^ x, 5) + __popc(x);
        x ^= __umulhi(x, y) + (y >> 7) + __float_as_uint(f);
        f = __fmaf_rn(static_cast<float>(x >> 8), 0x1p-26f, __fmul_rn(2.95f, __fmaf_rn(-f, f, f)));
    }
    u64 found = (static_cast<u64>(__float_as_uint(f)) << 32) | (x ^ y);
    gpufleet_compare(report, threadIdx.x, expected[threadIdx.x], found);
    gpufleet_ended(report, began);
}

extern "C" __global__ void __launch_bounds__(512, 1) gpufleet_tensor_fp16(u32 rounds, const u32* expected, GpufleetReport* report) {
    gpufleet_tensor<__half, __half, float, 16>(rounds, expected, report);
}

extern "C" __global__ void __launch_bounds__(512, 1) gpufleet_tensor_int8(u32 rounds, const u32* expected, GpufleetReport* report) {
    gpufleet_tensor<signed char, signed char, int, 16>(rounds, expected, report);
}

// What stands in a word of memory: every bit depends on its place, so that lines which are stuck or
// swapped are seen.
__device__ __forceinline__ u64 gpufleet_pattern(u64 place, u64 seed) {
    u64 mixed = (place + 1) * 0x9E3779B97F4A7C15ull ^ seed;
    return mixed ^ (mixed >> 29);
}

extern "C" __global__ void __launch_bounds__(512) gpufleet_fill(u64* words, u64 count, u64 seed) {
    u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 at = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += step)
        words[at] = gpufleet_pattern(at, seed);
}

extern "C" __global__ void __launch_bounds__(512) gpufleet_verify(const u64* words, u64 count, u64 seed, GpufleetReport* report) {
    u64 began = gpufleet_now();
    u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 at = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += step)
        gpufleet_compare(report, at, gpufleet_pattern(at, seed), __ldcs(words + at));
    gpufleet_ended(report, began);
}

// The memory's rate: `count` times 16 bytes, read and written.
extern "C" __global__ void __launch_bounds__(512) gpufleet_copy(uint4* to, const uint4* from, u64 count) {
    u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    u64 at = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; at + 3 * step < count; at += 4 * step) {
        uint4 a = __ldcs(from + at), b = __ldcs(from + at + step);
        uint4 c = __ldcs(from + at + 2 * step), d = __ldcs(from + at + 3 * step);
        __stcs(to + at, a);
        __stcs(to + at + step, b);
        __stcs(to + at + 2 * step, c);
        __stcs(to + at + 3 * step, d);
    }
    for (; at < count; at += step) __stcs(to + at, __ldcs(from + at));
}
