#include "colossal/run/objectives/alignment/token_values.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/nn/outputs.h"

namespace colossal::run {

at::Tensor token_values(const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
  const at::Tensor& last = end.at(0);
  if (model.shape.outputs() > 0) return last.select(2, 0);
  require(model.values != nullptr, "model",
          "values of tokens need a model with a head of outputs or of values: got one with neither");
  return model.values->forward(last.to(at::promote_types(last.scalar_type(), at::kFloat)), step).select(2, 0);
}

}  // namespace colossal::run
