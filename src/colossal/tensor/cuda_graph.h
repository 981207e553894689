// Recording on CUDA devices: cuda_graph.cpp where the headers of CUDA were found, else no_cuda_graph.cpp.
#pragma once
#include "colossal/tensor/graph.h"

namespace colossal::tensor {

/// Null: this build has none.
Capture cuda_capture();

}  // namespace colossal::tensor
