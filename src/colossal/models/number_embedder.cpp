#include "colossal/models/number_embedder.h"

#include <ATen/ATen.h>

#include "colossal/nn/sinusoids.h"

namespace colossal::models {

NumberEmbedder::NumberEmbedder(const std::string& name, int64_t size, const NumberEmbedding& o, nn::Layers& make)
    : options_(o),
      dtype_(make.parameters().options().dtype),
      of_sinusoids_(name, {.in = o.sinusoids, .size = size, .first = o.first_deviation, .second = o.second_deviation},
                    make) {}

at::Tensor NumberEmbedder::forward(const at::Tensor& numbers) const {
  const at::Tensor wide = numbers.to(at::promote_types(dtype_, at::kFloat));
  return of_sinusoids_.forward(
      nn::time_sinusoids(wide, options_.sinusoids, {.cosines_first = true, .shift = options_.shift}));
}

}  // namespace colossal::models
