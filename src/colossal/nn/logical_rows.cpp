#include "colossal/nn/logical_rows.h"

#include <ATen/ATen.h>

#include <vector>

namespace colossal::nn {

at::Tensor by_logical_rows(const at::Tensor& x, const Tokens& tokens, int64_t first_row,
                           const std::function<at::Tensor(const at::Tensor& run, const ops::LogicalRows& rows)>& work) {
  const int64_t sequence = tokens.sequence.whole_size(x.size(1));
  const int64_t first = (first_row + tokens.batch.held.front() * x.size(0)) * sequence;
  const auto computed = [&](const at::Tensor& run, const Range& range) {
    return work(run, {first + range.first, range.size, sequence});
  };
  const std::vector<Range> ranges = tokens.sequence.ranges(sequence, "sequence");
  if (ranges.size() == 1) return computed(x, ranges.front());
  std::vector<at::Tensor> runs;
  int64_t own = 0;  // index in x of the first token of a range
  for (const Range& range : ranges) {
    runs.push_back(computed(x.narrow(1, own, range.size), range));
    own += range.size;
  }
  return at::cat(runs, 1);
}

}  // namespace colossal::nn
