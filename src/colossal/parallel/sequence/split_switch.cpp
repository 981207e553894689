#include "colossal/parallel/sequence/split_switch.h"

#include <ATen/ATen.h>

#include <numeric>

#include "colossal/base/error.h"
#include "colossal/comm/collectives.h"
#include "colossal/nn/tokens.h"

namespace colossal::parallel {

SplitSwitch::SplitSwitch(const at::Tensor& x, const nn::Axis& from, const nn::Axis& to, const comm::Group& group)
    : from_(from),
      to_(to),
      held_(nn::near_even_cut(from.size, group.size()).lengths),
      taken_(nn::near_even_cut(to.size, group.size()).lengths),
      sizes_(x.sizes().vec()) {
  const int64_t own = held_[static_cast<size_t>(group.rank())], next = taken_[static_cast<size_t>(group.rank())];
  require(x.size(from.dim) == own && x.size(to.dim) == to.size, "parallel", "a state to switch must have ", own, " of ",
          from.size, " ", from.name, " and all ", to.size, " ", to.name, " in dimensions ", from.dim, " and ", to.dim,
          ": got ", x.sizes(), "; switch it back first");
  int64_t each = 1;  // elements of one index of both axes
  for (int64_t dim = 0; dim < x.dim(); ++dim)
    if (dim != from.dim && dim != to.dim) each *= x.size(dim);
  for (const int64_t size : taken_) sent_.push_back(size * own * each);
  for (const int64_t size : held_) received_.push_back(size * next * each);
  sizes_[static_cast<size_t>(to.dim)] = next;
}

int64_t SplitSwitch::elements() const { return std::accumulate(received_.begin(), received_.end(), int64_t{0}); }

// What goes to a rank is one run if `to` is the first dimension, so that there is one copy of x at most.
at::Tensor SplitSwitch::packed(const at::Tensor& x) const { return x.movedim(to_.dim, 0).flatten(); }

at::Tensor SplitSwitch::unpacked(const at::Tensor& arrived) const {
  std::vector<at::Tensor> parts;
  std::vector<int64_t> sizes = sizes_;
  int64_t rank = 0;
  for (const at::Tensor& part : arrived.split_with_sizes(received_)) {
    sizes[static_cast<size_t>(from_.dim)] = held_[static_cast<size_t>(rank++)];
    std::vector<int64_t> moved = sizes;
    moved.erase(moved.begin() + to_.dim);
    moved.insert(moved.begin(), sizes[static_cast<size_t>(to_.dim)]);
    parts.push_back(part.view(moved).movedim(0, to_.dim));
  }
  return at::cat(parts, from_.dim);
}

at::Tensor switched_split(const at::Tensor& x, const nn::Axis& from, const nn::Axis& to, comm::Group& group) {
  const SplitSwitch exchange(x, from, to, group);
  at::Tensor packed = exchange.packed(x);
  const at::Tensor arrived = comm::all_to_all(packed, exchange.received(), exchange.sent(), group);
  packed.reset();  // x, what arrived and the result are enough
  return exchange.unpacked(arrived);
}

}  // namespace colossal::parallel
