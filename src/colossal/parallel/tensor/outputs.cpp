#include "colossal/parallel/tensor/outputs.h"

#include <ATen/ATen.h>

#include "colossal/comm/collectives.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/parallel/tensor/activations.h"

namespace colossal::parallel {

TensorOutputs::TensorOutputs(nn::Parameters& p, std::shared_ptr<const Layout> layout, const std::string& name,
                             int64_t hidden, int64_t out, const nn::LinearOptions& o)
    : layout_(std::move(layout)),
      weight_(p, *layout_, name + ".weight", {out, hidden}, layout_->outside,
              {.features = 1, .init = nn::Init::normal(o.deviation), .decay = true}) {
  if (o.bias)
    bias_.emplace(p, *layout_, name + ".bias", std::vector<int64_t>{out}, layout_->outside,
                  Table::Options{.features = -1});
}

at::Tensor TensorOutputs::own(const at::Tensor& hidden) const {
  comm::Group& features = layout_->mesh->group(layout_->outside.columns);
  if (features.size() == 1) return nn::linear(hidden, weight_.value(), bias_ ? bias_->value() : at::Tensor());
  const at::Tensor y = comm::reduce_from(nn::linear(hidden, weight_.value(), {}), features);
  return bias_ ? y + bias_->value() : y;
}

at::Tensor TensorOutputs::forward(const at::Tensor& hidden, const nn::ForwardContext& step) {
  return joined(*layout_, layout_->outside, own(hidden), step);
}

}  // namespace colossal::parallel
