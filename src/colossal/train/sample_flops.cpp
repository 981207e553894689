#include "colossal/train/sample_flops.h"

#include <ATen/core/Tensor.h>

namespace colossal::train {

SampleFlops::SampleFlops(const models::ModelShape& shape, const run::Objective& objective)
    : shape_(shape), objective_(objective), of_example_(run::costs_of(shape, objective).sum()) {}

double SampleFlops::of(const tensor::Batch& batch) {
  if (!objective_.varies_in_size()) return of_example_;
  std::vector<int64_t> sizes;
  for (const auto& [name, field] : batch.fields()) {
    const at::IntArrayRef own = field.tensor.sizes().slice(1);
    sizes.insert(sizes.end(), own.begin(), own.end());
  }
  const auto found = known_.find(sizes);
  if (found != known_.end()) return found->second;
  return known_[sizes] = run::costs_of(shape_, objective_, batch).sum();
}

}  // namespace colossal::train
