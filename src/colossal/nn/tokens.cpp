#include "colossal/nn/tokens.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"

namespace colossal::nn {
namespace {

constexpr char kBatch[] = "batch", kSequence[] = "sequence";

}  // namespace

std::vector<Range> Share::ranges(int64_t size, const char* what) const {
  require(size % runs == 0, "parallel", "the ", what, " must divide by the ", runs, " runs it is dealt out in: got ",
          size);
  std::vector<Range> ranges;
  for (const int64_t index : held) ranges.push_back({index * (size / runs), size / runs});
  return ranges;
}

at::Tensor Share::of(const at::Tensor& whole, int64_t dim, const char* what) const {
  if (!whole.defined() || is_all()) return whole;
  std::vector<at::Tensor> parts;
  for (const Range& range : ranges(whole.size(dim), what)) parts.push_back(whole.narrow(dim, range.first, range.size));
  return parts.size() == 1 ? parts.front() : at::cat(parts, dim);
}

at::Tensor Tokens::of(const at::Tensor& whole) const { return sequence.of(rows_of(whole), 1, kSequence); }

at::Tensor Tokens::rows_of(const at::Tensor& whole) const { return batch.of(whole, 0, kBatch); }

}  // namespace colossal::nn
