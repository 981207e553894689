// Seeds derived from seeds. Every consumer of random numbers derives a seed from its own name, so its stream does not
// depend on the order of use.
#pragma once
#include <cstdint>
#include <string_view>

namespace colossal {

/// One step of SplitMix64 (Steele, Lea, Flood 2014): a bijection that scatters neighbouring inputs.
constexpr uint64_t splitmix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

/// Returns the seed of child number `index`, as in derive_seed(seed, epoch).
constexpr uint64_t derive_seed(uint64_t seed, uint64_t index) {
  return splitmix64(splitmix64(seed) ^ splitmix64(~index));
}

/// Returns the seed of the child called `name`, as in derive_seed(seed, "blocks.3.attention.dropout"). The function
/// computes the FNV-1a hash of the name and mixes it with `seed`.
constexpr uint64_t derive_seed(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return splitmix64(splitmix64(seed) ^ hash);
}

/// Returns the number in [0, 1) that a seed stands for, of 53 bits.
constexpr double uniform_of_seed(uint64_t seed) { return static_cast<double>(seed >> 11) * 0x1p-53; }

}  // namespace colossal
