#include "colossal/models/number_embedder.h"

#include <ATen/ATen.h>

#include "colossal/nn/linear.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/sinusoids.h"
#include "colossal/nn/vector.h"

namespace colossal::models {

NumberEmbedder::NumberEmbedder(const std::string& name, int64_t size, const NumberEmbedding& o, nn::Layers& make)
    : options_(o),
      dtype_(make.parameters().options().dtype),
      weight_(make.vector(name + ".linear_1.weight", {size, o.sinusoids},
                          {.init = nn::Init::normal(o.first_deviation), .decay = true})),
      bias_(make.vector(name + ".linear_1.bias", {size}, {})),
      second_(make.dense(name + ".linear_2", size, size, {.deviation = o.second_deviation})) {}

at::Tensor NumberEmbedder::forward(const at::Tensor& numbers) const {
  const at::Tensor wide = numbers.to(at::promote_types(dtype_, at::kFloat));
  const at::Tensor x =
      nn::time_sinusoids(wide, options_.sinusoids, {.cosines_first = true, .shift = options_.shift}).to(dtype_);
  return second_->forward(at::silu(nn::linear(x, weight_->value(), bias_->value())));
}

}  // namespace colossal::models
