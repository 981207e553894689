// Random numbers of samples: pure functions of a sample's seed and of a name, such as "noise".
//
//   const at::Tensor noise = run::normal_of(seed, "noise", {4, 8, 8});
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace colossal::run {

/// Seed of the random numbers of held-out samples, in all runs, so that evaluations can be compared.
inline constexpr uint64_t kHeldOutSeed = 0x5eed;

/// Returns a number in [0, 1).
double uniform_of(uint64_t seed, const char* name);
/// Returns standard normal numbers, fp32.
at::Tensor normal_of(uint64_t seed, const char* name, const std::vector<int64_t>& sizes);

}  // namespace colossal::run
