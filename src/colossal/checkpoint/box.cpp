#include "colossal/checkpoint/box.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace colossal::checkpoint {

int64_t Box::numel() const { return std::accumulate(size.begin(), size.end(), int64_t{1}, std::multiplies<>()); }

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box common;
  for (size_t d = 0; d < a.start.size(); ++d) {
    const int64_t start = std::max(a.start[d], b.start[d]);
    const int64_t end = std::min(a.start[d] + a.size[d], b.start[d] + b.size[d]);
    if (start >= end) return std::nullopt;
    common.start.push_back(start);
    common.size.push_back(end - start);
  }
  return common;
}

at::Tensor at_box(const at::Tensor& tensor, const Box& box, const std::vector<int64_t>& origin) {
  at::Tensor view = tensor;
  for (size_t d = 0; d < box.start.size(); ++d)
    view = view.narrow(d, box.start[d] - (origin.empty() ? 0 : origin[d]), box.size[d]);
  return view;
}

}  // namespace colossal::checkpoint
