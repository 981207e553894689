// A call that owns references to its tensors and copies of its row counts.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "colossal/comm/call.h"

namespace colossal::comm {

/// A Call that stays valid after issue() has returned. Copies refer to the same tensors.
/// Cost: a reference count for each tensor.
class KeptCall {
 public:
  explicit KeptCall(const Call& call)
      : call_(call),
        out_(call.out ? *call.out : at::Tensor()),
        in_(call.in ? *call.in : at::Tensor()),
        out_rows_(call.out_rows.begin(), call.out_rows.end()),
        in_rows_(call.in_rows.begin(), call.in_rows.end()) {}

  /// Returns a Call that refers to this object, which must outlive it.
  Call call() const {
    Call call = call_;
    if (call_.out) call.out = &out_;
    if (call_.in) call.in = call_.in == call_.out ? &out_ : &in_;
    call.out_rows = out_rows_;
    call.in_rows = in_rows_;
    return call;
  }

 private:
  Call call_;
  at::Tensor out_, in_;
  std::vector<int64_t> out_rows_, in_rows_;
};

}  // namespace colossal::comm
