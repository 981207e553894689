#include "colossal/parallel/tensor/panels.h"

#include <ATen/ATen.h>

namespace colossal::parallel {

Panels::Panels(comm::Group& group, const at::Tensor& own) : group_(group), own_(own.contiguous()) { fetch(0); }

const at::Tensor& Panels::take(int t) {
  works_[t % 2].wait();
  if (t + 1 < group_.size()) fetch(t + 1);
  return slots_[t % 2];
}

void Panels::fetch(int t) {
  // The owner sends its own tile; the others receive into memory that was last read two panels ago.
  at::Tensor& slot = slots_[t % 2];
  if (t == group_.rank()) {
    slot = own_;
  } else {
    at::Tensor& received = received_[t % 2];
    if (!received.defined()) received = at::empty_like(own_);
    slot = received;
  }
  works_[t % 2] = group_.broadcast(slot, t);
}

void Sums::give(int t, at::Tensor partial) {
  works_[t % 2].wait();
  at::Tensor& slot = slots_[t % 2];
  slot = std::move(partial);
  if (t == group_.rank()) own_ = slot;
  works_[t % 2] = group_.reduce(slot, t, comm::Reduce::Sum);
}

at::Tensor Sums::own() {
  for (comm::Work& work : works_) work.wait();
  return own_;
}

}  // namespace colossal::parallel
