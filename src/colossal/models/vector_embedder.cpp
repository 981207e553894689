#include "colossal/models/vector_embedder.h"

#include <ATen/ATen.h>

namespace colossal::models {

VectorEmbedder::VectorEmbedder(const std::string& name, const VectorEmbedding& sizes, nn::Layers& make)
    : dtype_(make.parameters().options().dtype),
      first_(make, name + ".linear_1", sizes.in, sizes.size, sizes.first),
      second_(make.dense(name + ".linear_2", sizes.size, sizes.size, {.deviation = sizes.second})) {}

at::Tensor VectorEmbedder::forward(const at::Tensor& x) const {
  return second_->forward(at::silu(first_.forward(x.to(dtype_))));
}

}  // namespace colossal::models
