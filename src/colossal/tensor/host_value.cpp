#include "colossal/tensor/host_value.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include "colossal/base/error.h"

namespace colossal::tensor {

std::vector<double> host_values(const at::Tensor& x) {
  RECORD_FUNCTION("colossal::host_values", std::vector<c10::IValue>{});
  if (x.is_meta()) {
    const at::Tensor host = at::empty(x.sizes(), at::kDouble);  // an account counts it as in a run with values
    return std::vector<double>(static_cast<size_t>(x.numel()), 0);
  }
  const at::Tensor host = x.detach().to(at::kCPU, at::kDouble).contiguous();
  const auto* first = host.const_data_ptr<double>();
  return {first, first + host.numel()};
}

double host_value(const at::Tensor& x) {
  require(x.numel() == 1, "tensor", "a tensor must have one element to be read as a number: got ", x.sizes());
  return host_values(x).front();
}

}  // namespace colossal::tensor
