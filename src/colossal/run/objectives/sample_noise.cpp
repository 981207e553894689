#include "colossal/run/objectives/sample_noise.h"

#include <ATen/ATen.h>

#include "colossal/base/seed.h"
#include "colossal/ops/random.h"

namespace colossal::run {

double uniform_of(uint64_t seed, const char* name) {
  return static_cast<double>(derive_seed(seed, name) >> 11) * 0x1p-53;
}

at::Tensor normal_of(uint64_t seed, const char* name, const std::vector<int64_t>& sizes) {
  at::Tensor numbers = at::empty(sizes, at::kFloat);
  const std::vector<int64_t> start(sizes.size(), 0);
  ops::fill_normal(numbers, sizes, start, start, sizes, derive_seed(seed, name), 1);
  return numbers;
}

}  // namespace colossal::run
