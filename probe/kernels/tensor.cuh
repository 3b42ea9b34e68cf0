// Known-answer work for the tensor cores: products of small integers, exact in every type and in every
// order of addition, also where a chip keeps few bits of a sum.
//
// Each warp adds A0*B, A1*B and takes both away again, `rounds` times, and adds one of them at the end.
// So a sum stays small however long it runs, and what an error adds is never taken back: it stands in
// the end, beside an answer that the host knows (probe/expected.rs has the same formulas).

#pragma once

#include <mma.h>

#include "report.cuh"

// So many that the registers of an SM are enough for one block: each SM gets one, none gets two.
#define GPUFLEET_WARPS 16u
#define GPUFLEET_THREADS (32u * GPUFLEET_WARPS)
#define GPUFLEET_A 2
#define GPUFLEET_B 4

// Element of the matrix A number i, -2 to 2.
__device__ __forceinline__ int gpufleet_a(int i, int row, int k) {
    return (row * 3 + k * 5 + i * 7 + row * k * (k + i + 1)) % 5 - 2;
}

// Element of the matrix B number j, -3 to 3.
__device__ __forceinline__ int gpufleet_b(int j, int k, int column) {
    return (k * 2 + column * 3 + j * 5 + k * column * (k + j + 1)) % 7 - 3;
}

template <typename Sum>
__device__ __forceinline__ u64 gpufleet_bits(Sum sum);
template <>
__device__ __forceinline__ u64 gpufleet_bits<float>(float sum) { return __float_as_uint(sum); }
template <>
__device__ __forceinline__ u64 gpufleet_bits<int>(int sum) { return static_cast<u32>(sum); }

// A warp compares the tile that it has put into shared memory.
template <typename Sum>
__device__ __noinline__ void gpufleet_compare_tile(GpufleetReport* report, const u32* expected, u32 first, const Sum* sums, u32 count) {
    __syncwarp();
    for (u32 at = threadIdx.x % 32; at < count; at += 32)
        gpufleet_compare(report, first + at, expected[first + at], gpufleet_bits<Sum>(sums[at]));
    __syncwarp();
}

// `Stored` is what lies in memory, `Type` the type of the fragment, K how deep one product is.
template <typename Type, typename Stored, typename Sum, int K>
__device__ __forceinline__ void gpufleet_tensor(u32 rounds, const u32* expected, GpufleetReport* report) {
    using namespace nvcuda;
    __shared__ __align__(32) Stored as[2 * GPUFLEET_A][16 * K];
    __shared__ __align__(32) Stored bs[GPUFLEET_B][16 * K];
    __shared__ __align__(32) Sum sums[GPUFLEET_WARPS][16 * 16];
    u64 began = gpufleet_now();
    for (int at = threadIdx.x; at < 16 * K; at += GPUFLEET_THREADS) {
        for (int i = 0; i < GPUFLEET_A; i++) {
            int value = gpufleet_a(i, at / K, at % K);
            as[i][at] = static_cast<Stored>(static_cast<float>(value));
            as[GPUFLEET_A + i][at] = static_cast<Stored>(static_cast<float>(-value));
        }
        // B lies column by column.
        for (int j = 0; j < GPUFLEET_B; j++)
            bs[j][at] = static_cast<Stored>(static_cast<float>(gpufleet_b(j, at % K, at / K)));
    }
    __syncthreads();
    wmma::fragment<wmma::matrix_a, 16, 16, K, Type, wmma::row_major> a[2 * GPUFLEET_A];
    wmma::fragment<wmma::matrix_b, 16, 16, K, Type, wmma::col_major> b[GPUFLEET_B];
    wmma::fragment<wmma::accumulator, 16, 16, K, Sum> sum[GPUFLEET_A][GPUFLEET_B];
#pragma unroll
    for (int i = 0; i < 2 * GPUFLEET_A; i++) wmma::load_matrix_sync(a[i], as[i], K);
#pragma unroll
    for (int j = 0; j < GPUFLEET_B; j++) {
        wmma::load_matrix_sync(b[j], bs[j], K);
#pragma unroll
        for (int i = 0; i < GPUFLEET_A; i++) wmma::fill_fragment(sum[i][j], static_cast<Sum>(0));
    }
    for (u32 round = 0; round < rounds; round++) {
#pragma unroll
        for (int step = 0; step < 2 * GPUFLEET_A; step++) {
#pragma unroll
            for (int i = 0; i < GPUFLEET_A; i++) {
                // A0 and A1 by turns, then what takes them away.
                const int from = (step / GPUFLEET_A) * GPUFLEET_A + (i + step) % GPUFLEET_A;
#pragma unroll
                for (int j = 0; j < GPUFLEET_B; j++) wmma::mma_sync(sum[i][j], a[from], b[j], sum[i][j]);
            }
        }
    }
    const u32 warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < GPUFLEET_A; i++) {
#pragma unroll
        for (int j = 0; j < GPUFLEET_B; j++) {
            wmma::mma_sync(sum[i][j], a[i], b[j], sum[i][j]);
            wmma::store_matrix_sync(sums[warp], sum[i][j], 16, wmma::mem_row_major);
            gpufleet_compare_tile(report, expected, (i * GPUFLEET_B + j) * 16 * 16, sums[warp], 16 * 16);
        }
    }
    gpufleet_ended(report, began);
}
