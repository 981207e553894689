// The kernels of GPUs; see kernels.h. If there are more blocks than a grid allows, each CUDA block processes
// several.
#include <cuda_runtime.h>

#include <cstdint>

#define COLOSSAL_SIMT
#include "colossal/ops/device/kernels.h"
#include "colossal/ops/lanes.h"

namespace colossal::ops {
namespace {

constexpr int kThreads = 256;  // threads per block, unless it asks for fewer
constexpr int64_t kMaxBlocks = 0x7FFFFFFF;

template <class Body, class... Arguments>
__global__ void __launch_bounds__(kThreads) every_block(Body body, int64_t blocks, Arguments... arguments) {
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) body(block, arguments...);
}

template <class Body, class... Arguments>
void launch(const Blocks& blocks, Body body, const Arguments&... arguments) {
  if (blocks.count == 0) return;
  const auto grid = static_cast<unsigned>(blocks.count < kMaxBlocks ? blocks.count : kMaxBlocks);
  const int threads = blocks.threads > 0 ? blocks.threads : kThreads;
  every_block<<<grid, threads, 0, static_cast<cudaStream_t>(blocks.stream)>>>(body, blocks.count, arguments...);
  if (const cudaError_t failed = cudaGetLastError(); failed != cudaSuccess) refuse_launch(cudaGetErrorString(failed));
}

struct Nothing {
  __device__ void operator()(int64_t) const {}
};

/// Returns true if this translation unit has code for the current device. It checks one kernel; all others are compiled
/// for the same devices.
bool does_current_run() {
  cudaFuncAttributes found;
  if (cudaFuncGetAttributes(&found, every_block<Nothing>) == cudaSuccess) return true;
  cudaGetLastError();  // clears the error, or the next launch would report it
  return false;
}

}  // namespace
}  // namespace colossal::ops

#include "colossal/ops/device/table.h"

namespace colossal::ops {

const DeviceTables& cuda_tables() {
  static const DeviceTables tables = device_tables_of_unit(does_current_run);
  return tables;
}

}  // namespace colossal::ops
