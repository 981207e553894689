// Runs an operator on the accelerator of the test, for operands and results on the host.
#pragma once
#include <ATen/ATen.h>

#include "ops/compare.h"
#include "support/accelerator.h"

namespace colossal::test {

inline ops::Operator on_accelerator(const ops::Operator& op) {
  return [op](const ops::Tensors& host) {
    ops::Tensors there, back;
    for (const at::Tensor& t : host) there.push_back(t.to(accelerator()));
    for (const at::Tensor& t : op(there)) back.push_back(t.to(at::kCPU));
    return back;
  };
}

}  // namespace colossal::test
