// Tensor cores in bf16 and tf32: Ampere and newer. scripts/ptx.sh makes mma_sm80.ptx of it.

#include <cuda_bf16.h>

#include "tensor.cuh"

extern "C" __global__ void __launch_bounds__(512, 1) gpufleet_tensor_bf16(u32 rounds, const u32* expected, GpufleetReport* report) {
    gpufleet_tensor<__nv_bfloat16, __nv_bfloat16, float, 16>(rounds, expected, report);
}

extern "C" __global__ void __launch_bounds__(512, 1) gpufleet_tensor_tf32(u32 rounds, const u32* expected, GpufleetReport* report) {
    gpufleet_tensor<nvcuda::wmma::precision::tf32, float, float, 8>(rounds, expected, report);
}
