// Capture of CUDA graphs: cuda_graph.cpp if the CUDA headers were found at build time, no_cuda_graph.cpp otherwise.
#pragma once
#include "colossal/tensor/graph.h"

namespace colossal::tensor {

/// Returns the function that captures on CUDA devices; null = this build has none.
Capture cuda_capture();

}  // namespace colossal::tensor
