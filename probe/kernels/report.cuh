// What every kernel of the probe writes: for each SM how often it took part, how often it was wrong and
// how long it took, and the first thing that was wrong. probe/report.rs reads it.

#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

// Rows of SMs: no card has a quarter of it, and %smid may have holes.
#define GPUFLEET_SMS 1024u

struct GpufleetSm {
    u64 nanoseconds;  // of all its blocks together
    u32 ran;          // blocks that ended on it
    u32 wrong;        // comparisons that failed on it
};

struct GpufleetReport {
    GpufleetSm sms[GPUFLEET_SMS];
    u32 claimed;   // 1: what follows is filled in
    u32 first_sm;  // where it was first wrong
    u64 place;     // of what: a thread, an element, a word of memory
    u64 expected;
    u64 found;
};

__device__ __forceinline__ u32 gpufleet_sm() {
    u32 sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    return sm & (GPUFLEET_SMS - 1);
}

__device__ __forceinline__ u64 gpufleet_now() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Out of line: it hardly ever runs, and would stand in the code once a comparison.
__device__ __noinline__ void gpufleet_wrong(GpufleetReport* report, u64 place, u64 expected, u64 found) {
    u32 sm = gpufleet_sm();
    atomicAdd(&report->sms[sm].wrong, 1u);
    if (atomicCAS(&report->claimed, 0u, 1u) == 0u) {
        report->first_sm = sm;
        report->place = place;
        report->expected = expected;
        report->found = found;
    }
}

// One comparison. What is right costs nothing.
__device__ __forceinline__ void gpufleet_compare(GpufleetReport* report, u64 place, u64 expected, u64 found) {
    if (expected != found) gpufleet_wrong(report, place, expected, found);
}

// The end of a block that began at `began`.
__device__ __forceinline__ void gpufleet_ended(GpufleetReport* report, u64 began) {
    __syncthreads();
    if (threadIdx.x != 0) return;
    GpufleetSm* sm = &report->sms[gpufleet_sm()];
    atomicAdd(&sm->nanoseconds, gpufleet_now() - began);
    atomicAdd(&sm->ran, 1u);
}
