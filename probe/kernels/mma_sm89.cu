// Tensor cores in fp8 (e4m3): Ada, Hopper and newer, drivers from 12.4 on. scripts/ptx.sh makes
// mma_sm89.ptx of it. The same work as in tensor.cuh in the shape that fp8 has: 16x8 sums over 32.

#include "tensor.cuh"

#define GPUFLEET_FP8_B 8

// e4m3 of -4 to 4.
__device__ __forceinline__ u32 gpufleet_e4m3(int value) {
    const u32 size = value < 0 ? -value : value;
    const u32 bits = size == 0 ? 0u : size == 1 ? 0x38u : size == 2 ? 0x40u : size == 3 ? 0x44u : 0x48u;
    return value < 0 ? bits | 0x80u : bits;
}

__device__ __forceinline__ void gpufleet_mma(float (&sum)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

extern "C" __global__ void __launch_bounds__(512, 1) gpufleet_tensor_fp8(u32 rounds, const u32* expected, GpufleetReport* report) {
    // What each lane holds of each matrix, as the instruction wants it.
    __shared__ u32 as[2 * GPUFLEET_A][4][32];
    __shared__ u32 bs[GPUFLEET_FP8_B][2][32];
    __shared__ float sums[GPUFLEET_WARPS][16 * 8];
    u64 began = gpufleet_now();
    for (u32 at = threadIdx.x; at < 2 * GPUFLEET_A * 4 * 32; at += GPUFLEET_THREADS) {
        const int lane = at % 32, word = at / 32 % 4, i = at / 128;
        u32 bytes = 0;
        for (int byte = 0; byte < 4; byte++) {
            int value = gpufleet_a(i % GPUFLEET_A, lane / 4 + 8 * (word % 2), lane % 4 * 4 + byte + 16 * (word / 2));
            bytes |= gpufleet_e4m3(i < GPUFLEET_A ? value : -value) << (8 * byte);
        }
        as[i][word][lane] = bytes;
    }
    for (u32 at = threadIdx.x; at < GPUFLEET_FP8_B * 2 * 32; at += GPUFLEET_THREADS) {
        const int lane = at % 32, word = at / 32 % 2, j = at / 64;
        u32 bytes = 0;
        for (int byte = 0; byte < 4; byte++)
            bytes |= gpufleet_e4m3(gpufleet_b(j, lane % 4 * 4 + byte + 16 * word, lane / 4)) << (8 * byte);
        bs[j][word][lane] = bytes;
    }
    __syncthreads();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 a[2 * GPUFLEET_A][4], b[GPUFLEET_FP8_B][2];
    float sum[GPUFLEET_A][GPUFLEET_FP8_B][4];
#pragma unroll
    for (int i = 0; i < 2 * GPUFLEET_A; i++)
#pragma unroll
        for (int word = 0; word < 4; word++) a[i][word] = as[i][word][lane];
#pragma unroll
    for (int j = 0; j < GPUFLEET_FP8_B; j++) {
        b[j][0] = bs[j][0][lane];
        b[j][1] = bs[j][1][lane];
#pragma unroll
        for (int i = 0; i < GPUFLEET_A; i++)
            for (int at = 0; at < 4; at++) sum[i][j][at] = 0.0f;
    }
    for (u32 round = 0; round < rounds; round++) {
#pragma unroll
        for (int step = 0; step < 2 * GPUFLEET_A; step++) {
#pragma unroll
            for (int i = 0; i < GPUFLEET_A; i++) {
                const int from = (step / GPUFLEET_A) * GPUFLEET_A + (i + step) % GPUFLEET_A;
#pragma unroll
                for (int j = 0; j < GPUFLEET_FP8_B; j++) gpufleet_mma(sum[i][j], a[from], b[j]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < GPUFLEET_A; i++) {
#pragma unroll
        for (int j = 0; j < GPUFLEET_FP8_B; j++) {
            gpufleet_mma(sum[i][j], a[i], b[j]);
#pragma unroll
            for (int at = 0; at < 4; at++)
                sums[warp][(lane / 4 + 8 * (at / 2)) * 8 + lane % 4 * 2 + at % 2] = sum[i][j][at];
            gpufleet_compare_tile(report, expected, (i * GPUFLEET_FP8_B + j) * 16 * 8, sums[warp], 16 * 8);
        }
    }
    gpufleet_ended(report, began);
}
