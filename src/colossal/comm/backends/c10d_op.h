// The reductions of c10d, the library below Gloo and NCCL.
#pragma once
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "colossal/comm/call.h"

namespace colossal::comm {

inline c10d::ReduceOp c10d_op(Reduce op) {
  switch (op) {
    case Reduce::Max:
      return c10d::ReduceOp::MAX;
    case Reduce::Min:
      return c10d::ReduceOp::MIN;
    default:
      return c10d::ReduceOp::SUM;
  }
}

}  // namespace colossal::comm
