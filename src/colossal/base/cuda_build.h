// The parts of CUDA that this build uses, as found by CMake's checks.
//
//   if (!cuda_build().libtorch.empty()) std::puts(cuda_build().libtorch.c_str());
#pragma once
#include <string>

namespace colossal {

/// Each member is empty if that part of CUDA works in this build. Otherwise it is one line that names the reason and
/// the remedy.
struct CudaBuild {
  std::string libtorch;  ///< LibTorch's CUDA operators: libtorch_cuda.so is linked
  std::string headers;   ///< NCCL, CUDA graphs and page-locked host memory: their units are compiled
  std::string kernels;   ///< our own CUDA kernels: compiled by nvcc and linked
};

/// The results of the checks of FindLibTorch.cmake, CudaHeaders.cmake and ColossalLayers.cmake. CMake generates the
/// definition.
const CudaBuild& cuda_build();

}  // namespace colossal
