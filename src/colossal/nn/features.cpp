#include "colossal/nn/features.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::nn {
namespace {

/// A group of which a rank has `count` features, from `first` of its own.
struct OwnGroup {
  int64_t group, first, count;
};

std::vector<OwnGroup> own_groups(const Range& here, int64_t width) {
  std::vector<OwnGroup> groups;
  for (int64_t next = here.first; next < here.first + here.size;) {
    const int64_t group = next / width, end = std::min((group + 1) * width, here.first + here.size);
    groups.push_back({group, next - here.first, end - next});
    next = end;
  }
  return groups;
}

}  // namespace

at::Tensor Features::sum_of_groups(const at::Tensor& x, int64_t groups) const {
  require(groups > 0 && size_ % groups == 0, "model", "groups must divide the ", size_, " features: got ", groups);
  require(x.size(-1) == room_, "model", "this rank's part of ", size_, " features must have ", room_, ": got ",
          x.size(-1));
  const int64_t width = size_ / groups;
  const at::Tensor own = room_ == here_.size ? x : x.narrow(-1, 0, here_.size);
  const auto padded = [&](const at::Tensor& y) {
    return room_ == here_.size ? y : at::constant_pad_nd(y, {0, room_ - here_.size});
  };
  // All ranks have as much room, so either every rank has whole groups, or all of them take part in the sum.
  if (room_ % width == 0) {
    const at::Tensor by_group = own.unflatten(-1, {here_.size / width, width});
    return padded(by_group.sum(-1, /*keepdim=*/true).expand_as(by_group).flatten(-2));
  }
  const std::vector<OwnGroup> mine = own_groups(here_, width);
  std::vector<int64_t> sizes = x.sizes().vec();
  const auto zeros = [&](int64_t count) {
    sizes.back() = count;
    return at::zeros(sizes, x.options());
  };
  std::vector<at::Tensor> sums, pieces;
  sums.push_back(zeros(mine.empty() ? groups : mine.front().group));
  for (const OwnGroup& one : mine) sums.push_back(own.narrow(-1, one.first, one.count).sum(-1, /*keepdim=*/true));
  if (!mine.empty()) sums.push_back(zeros(groups - 1 - mine.back().group));
  const at::Tensor all = sum(at::cat(sums, -1));
  for (const OwnGroup& one : mine) {
    sizes.back() = one.count;
    pieces.push_back(all.narrow(-1, one.group, 1).expand(sizes));
  }
  if (pieces.empty()) pieces.push_back(all.narrow(-1, 0, 0));  // its gradient belongs to the sum of the other ranks
  return padded(at::cat(pieces, -1));
}

ops::RankReduction& Features::reduction() const {
  static ops::RankReduction none;
  return none;
}

}  // namespace colossal::nn
