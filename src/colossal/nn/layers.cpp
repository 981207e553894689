#include "colossal/nn/layers.h"

#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/axial_ranks.h"
#include "colossal/nn/axis_switch.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/neighbours.h"
#include "colossal/nn/token_runs.h"

namespace colossal::nn {

Layers::~Layers() = default;

std::unique_ptr<Attention> Layers::make_attention(int64_t layer, const AttentionShape& shape,
                                                  const AttentionOptions& options) {
  return whole_attention(layer, shape, options);
}

std::shared_ptr<const Neighbours> Layers::neighbours(const Reach& reach) {
  return std::make_shared<const Neighbours>(token_runs(), reach, neighbours_++);
}

std::shared_ptr<const AxialRanks> Layers::axial_ranks() const { return std::make_shared<const AxialRanks>(); }

std::shared_ptr<const AxisSwitch> Layers::axis_switch() const { return std::make_shared<const AxisSwitch>(); }

OwnTokens Layers::own_tokens() const {
  return [](const ForwardContext&) { return Tokens{}; };
}

FieldPart Layers::field_part() const {
  return [](const tensor::Field& field, const ForwardContext&) { return field.tensor; };
}

}  // namespace colossal::nn
