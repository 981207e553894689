#include "colossal/nn/modulation.h"

#include <ATen/ATen.h>

namespace colossal::nn {

at::Tensor modulated(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale) {
  return at::addcmul(shift, x, 1 + scale);
}

std::vector<at::Tensor> modulation_vectors(const at::Tensor& y, int64_t count) {
  return y.unsqueeze(1).chunk(count, -1);
}

}  // namespace colossal::nn
