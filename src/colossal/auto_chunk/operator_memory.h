// What operators need beside operands and results while they run: scratch memory of kernels, copies of operands.
//
//   const OperatorMemory memory(traced);
//   memory.beside(node, /*cut=*/1, /*count=*/16);      // bytes, of a block of 16 along dimension 1 of the result
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "colossal/auto_chunk/free_dims.h"
#include "colossal/trace/trace.h"

namespace colossal::auto_chunk {

/// Runs operators on shapes under a memory::Account, once for each size of a block. Operators of this library ask there
/// for the scratch memory that they would need on the device that meta stands for. Operators that cannot run on shapes
/// count as if they needed nothing.
class OperatorMemory {
 public:
  /// Runs all operators once. `traced` must outlive this.
  explicit OperatorMemory(const trace::TracedModule& traced);
  /// Returns the bytes for a whole result (cut = -1), or for a block of `count` along dimension `cut` of it. Bit k of
  /// `dense`: operand k is a block that an operator made, not a part of a whole tensor, which may have gaps.
  int64_t beside(const NodeDims& dims, int node, int cut, int64_t count, uint64_t dense) const;

 private:
  int64_t measured(const trace::TracedOperator& run, const std::vector<at::Tensor>& operands, int64_t bytes,
                   at::Tensor* result) const;
  std::vector<at::Tensor> operands_of(int node) const;

  const trace::TracedModule& traced_;
  std::vector<at::Tensor> values_, parameters_;  ///< on meta
  mutable std::map<std::tuple<int, int, int64_t, uint64_t>, int64_t> known_;
};

/// Returns the operator for a block: operators that name the sizes of their results have those of whole tensors.
trace::TracedOperator sized(const trace::TracedOperator& run, const std::vector<int64_t>& whole, int cut,
                            int64_t count);

}  // namespace colossal::auto_chunk
