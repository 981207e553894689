#include "colossal/train/first_values.h"

#include "colossal/checkpoint/weight_source.h"

namespace colossal::train {

std::shared_ptr<const checkpoint::WeightSource> weights_at(const std::string& path) {
  return checkpoint::open_weights(path);
}

std::shared_ptr<const checkpoint::WeightSource> weights_in(const std::map<std::string, at::Tensor>& tensors) {
  return checkpoint::weights_in_memory(tensors);
}

}  // namespace colossal::train
