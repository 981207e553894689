// The free dimensions of a traced operator: those along which a loop may run it on blocks, with the same numbers.
//
//   const NodeDims dims = free_dims(traced, node);
//   dims.output[1] >= 0;                               // blocks along dimension 1 are computed apart
//   dims.operands[0][2] == dims.output[1];             // they read the same block of dimension 2 of operand 0
#pragma once
#include <vector>

#include "colossal/trace/trace.h"

namespace colossal::auto_chunk {

/// The index of each dimension of the operands, in the order of plan::Node::inputs, and of the output. -1 = the
/// operator needs the whole dimension: it sums or normalizes over it, or counts positions.
struct NodeDims {
  std::vector<std::vector<int>> operands;
  std::vector<int> output;
};

/// Returns the free dimensions of a node: for operators of LibTorch by plan::index_operator() (indices that split and
/// are not summed), for those of this library as they announce them. Inputs, constants, results of operators with
/// several ones, unknown operators and those that communicate have none.
NodeDims free_dims(const trace::TracedModule& traced, int node);

}  // namespace colossal::auto_chunk
