#include "colossal/models/modulated_end.h"

#include <ATen/ATen.h>

#include <vector>

namespace colossal::models {

ModulatedEnd::ModulatedEnd(nn::Layers& make, int64_t hidden, int64_t outputs)
    : modulation_(make.modulation("norm.modulation", hidden, 2)),
      norm_(make.layer_norm("norm", hidden, {.epsilon = 1e-6, .affine = false})),
      outputs_(make.outputs("head", hidden, outputs, {.deviation = 0})) {}

at::Tensor ModulatedEnd::forward(const at::Tensor& x, const at::Tensor& condition,
                                 const nn::ForwardContext& step) const {
  const std::vector<at::Tensor> m = modulation_->forward(condition);  // shift and scale
  const at::Tensor y = nn::modulated(norm_->forward(x), m[0], m[1]);
  return outputs_->forward(y.to(at::promote_types(y.scalar_type(), at::kFloat)), step);
}

}  // namespace colossal::models
