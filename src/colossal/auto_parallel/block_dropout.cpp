#include "colossal/auto_parallel/block_dropout.h"

#include <ATen/ATen.h>

#include "colossal/ops/random.h"

namespace colossal::automatic {
namespace {

/// The rows of a block: all dimensions but the last.
struct BlockRows {
  const std::vector<int64_t>&shape, &start;
  std::vector<int64_t> size;  // of the block

  bool is_divided(size_t dim) const { return size[dim] != shape[dim]; }
  /// Returns the last dimension of the rows that is divided, or -1.
  int last_divided() const {
    for (int dim = static_cast<int>(shape.size()) - 2; dim >= 0; --dim)
      if (is_divided(static_cast<size_t>(dim))) return dim;
    return -1;
  }
  /// Returns the first dimension with several indices in the block.
  size_t first_long() const {
    size_t dim = 0;
    while (dim + 1 < size.size() && size[dim] == 1) ++dim;
    return dim;
  }
  /// Returns true if runs of rows begin at equal distances. Between the first dimension with several indices and the
  /// last divided one, no dimension may be divided.
  bool is_regular() const {
    const int last = last_divided();
    for (int dim = static_cast<int>(first_long()) + 1; dim < last; ++dim)
      if (is_divided(static_cast<size_t>(dim))) return false;
    return true;
  }
  ops::LogicalRows logical() const {
    int64_t first = 0, run = 1, stride = 1;
    const int last = last_divided();
    for (int dim = 0; dim + 1 < static_cast<int>(shape.size()); ++dim) {
      first = first * shape[dim] + start[dim];
      if (dim < last || last < 0) continue;
      run *= size[dim];
      stride *= shape[dim];
    }
    return {first, run, stride};
  }
};

}  // namespace

at::Tensor dropout_of_block(const at::Tensor& block, double probability, uint64_t seed,
                            const std::vector<int64_t>& shape, const std::vector<int64_t>& start) {
  if (block.dim() == 0 || block.numel() == 0)
    return ops::dropout(block, probability, seed, {0}, 0, block.dim() == 0 ? 1 : shape.back());
  const BlockRows rows{shape, start, block.sizes().vec()};
  if (rows.is_regular()) return ops::dropout(block, probability, seed, rows.logical(), start.back(), shape.back());
  const auto dim = static_cast<int64_t>(rows.first_long());
  std::vector<at::Tensor> dropped;
  for (int64_t i = 0; i < block.size(dim); ++i) {
    std::vector<int64_t> from = start;
    from[dim] += i;
    dropped.push_back(dropout_of_block(block.narrow(dim, i, 1), probability, seed, shape, from));
  }
  return at::cat(dropped, dim);
}

}  // namespace colossal::automatic
