#include "colossal/nn/layers.h"

#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/forward_context.h"

namespace colossal::nn {

Layers::~Layers() = default;

std::unique_ptr<Attention> Layers::make_attention(int64_t layer, const AttentionShape& shape,
                                                  const AttentionOptions& options) {
  return whole_attention(layer, shape, options);
}

FieldPart Layers::field_part() const {
  return [](const tensor::Field& field, const ForwardContext&) { return field.tensor; };
}

}  // namespace colossal::nn
