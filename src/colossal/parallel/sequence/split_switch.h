// The exchange that moves the split of a tensor over ranks from one dimension to another, bit for bit.
//
//   const at::Tensor y = switched_split(x, {1, 60, "rows"}, {2, 60, "columns"}, group);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/comm/group.h"
#include "colossal/nn/axis_switch.h"

namespace colossal::parallel {

/// One rank's side of a switch of x, which it has cut along `from` and whole along `to`, into near_even_cut() parts.
/// Parts may be empty.
class SplitSwitch {
 public:
  /// Errors ("parallel"): x of other sizes.
  SplitSwitch(const at::Tensor& x, const nn::Axis& from, const nn::Axis& to, const comm::Group& group);

  /// Returns what this rank sends, by rank, flat: sent()[r] elements go to rank r. It may be a view of x.
  at::Tensor packed(const at::Tensor& x) const;
  /// Returns the result of what arrived, flat: received()[r] elements from rank r.
  at::Tensor unpacked(const at::Tensor& arrived) const;
  const std::vector<int64_t>& sent() const { return sent_; }
  const std::vector<int64_t>& received() const { return received_; }
  int64_t elements() const;  ///< that arrive

 private:
  nn::Axis from_, to_;
  std::vector<int64_t> held_, taken_, sizes_, sent_, received_;
};

/// Returns x whole along `from` and cut along `to`. Differentiable: backward is the opposite exchange. Communication
/// and errors: those of nn::AxisSwitch; but an axis may have fewer elements than ranks. Memory: besides x at most twice
/// as much as it has.
at::Tensor switched_split(const at::Tensor& x, const nn::Axis& from, const nn::Axis& to, comm::Group& group);

}  // namespace colossal::parallel
