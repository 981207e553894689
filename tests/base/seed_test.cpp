#include "colossal/base/seed.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace colossal::seed_test {
namespace {

TEST(Seed, EqualsPublishedValuesOfSplitMix64) {
  // These are the first outputs of the reference generator with seed 0, which adds the golden ratio before each mix.
  EXPECT_EQ(splitmix64(0), 0xE220A8397B1DCDAFull);
  EXPECT_EQ(splitmix64(0x9E3779B97F4A7C15ull), 0x6E789E6AA1B965F4ull);
}

TEST(Seed, DerivesChildrenByParentNameAndIndex) {
  std::set<uint64_t> seeds;
  for (uint64_t parent = 0; parent < 100; ++parent) {
    seeds.insert(parent);
    for (uint64_t index = 0; index < 100; ++index) {
      seeds.insert(derive_seed(parent, index));
      seeds.insert(derive_seed(parent, "layer." + std::to_string(index)));
    }
  }
  EXPECT_EQ(seeds.size(), 100u + 2u * 100u * 100u);
}

TEST(Seed, EvaluatesAtCompileTime) {
  static_assert(derive_seed(7, "dropout") == derive_seed(7, "dropout"));
  static_assert(derive_seed(7, "dropout") != derive_seed(7, "init"));
  static_assert(derive_seed(7, uint64_t{0}) != derive_seed(7, uint64_t{1}));
  static_assert(derive_seed(7, "") != derive_seed(8, ""));
}

}  // namespace
}  // namespace colossal::seed_test
