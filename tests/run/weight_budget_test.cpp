// Plans of weights for random models and budgets. A plan must not use more than its budget. The smallest budget that a
// plan names must work, and no smaller one may work.
#include "colossal/run/weight_budget.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "colossal/memory/tiers/block_file.h"
#include "colossal/tensor/device_meant.h"

namespace colossal::run::weight_budget_test {
namespace {

using memory::kBlock;

int64_t bytes_of(const nn::Parameter& p) { return memory::whole_blocks(p.value.numel() * p.value.element_size()); }

/// Returns the bytes of the three largest chunks that are not on the device.
int64_t at_once(const nn::Parameters& parameters, const WeightBudget& budget) {
  std::vector<int64_t> sizes;
  for (const nn::Parameter& p : parameters)
    if (!budget.on_device.contains(&p)) sizes.push_back(std::max(bytes_of(p), budget.chunk));
  std::sort(sizes.rbegin(), sizes.rend());
  sizes.resize(std::min<size_t>(sizes.size(), 3));
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

/// A model with shapes only, and budgets for it.
struct Random {
  Random(unsigned seed, at::Device device)
      : engine(seed),
        parameters({}, {.dtype = pick(2) == 0 ? at::kFloat : at::kBFloat16, .device = device, .without_memory = true}) {
    for (int64_t i = pick(12); i >= 0; --i) {
      const int64_t rows = 1 + pick(int64_t{1} << pick(10)), columns = 1 + pick(int64_t{1} << pick(10));
      nn::Parameter& p =
          parameters.add("p" + std::to_string(i), tensor::ShardSpec::whole({rows, columns}), nn::Init::zeros(), true);
      p.hidden_matrix = pick(4) != 0;
      all += bytes_of(p);
    }
    if (pick(2) == 0) memory.disk = "scratch/";
    if (pick(3) == 0) memory.placement = "lru";
    if (pick(3) != 0) memory.host = ranks * some();
    if (!device.is_cpu() && pick(3) != 0) memory.device = some();
  }
  int64_t pick(int64_t end) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(end)); }
  int64_t some() { return kBlock * (1 + pick(all / kBlock * 3 / 2)); }
  WeightBudget plan() const { return plan_weights(parameters, memory, ranks); }

  std::mt19937 engine;
  const int64_t ranks = 1 + pick(3);
  nn::Parameters parameters;
  int64_t all = 0;
  MemoryConfig memory;
};

/// Checks the smallest budget that plan() reports (`least`) in place of `given`: it works, and no smaller one does.
void expect_smallest(Random& random, int64_t& given, int64_t unit, const std::function<int64_t()>& least,
                     const std::string& what) {
  const int64_t asked = std::exchange(given, least() * unit);
  EXPECT_LE(least() * unit, given) << what;
  for (const int64_t smaller : {given - unit * kBlock, asked, asked + (given - asked) / unit / 2 * unit}) {
    if (smaller <= 0 || smaller >= given) continue;
    const int64_t works = std::exchange(given, smaller);
    EXPECT_GT(least() * unit, given) << what << ", " << smaller << " instead of " << works;
    given = works;
  }
}

TEST(WeightBudget, FitsAcceleratorAndNamesSmallest) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const tensor::MeantDevice meant(at::kCUDA);
    Random random(seed, at::kMeta);
    run::MemoryConfig& memory = random.memory;
    const std::string what = "seed " + std::to_string(seed);
    if (random.plan().min_device > memory.device)
      expect_smallest(random, memory.device, 1, [&] { return random.plan().min_device; }, what);
    if (memory.host > 0 && random.plan().min_host * random.ranks > memory.host)
      expect_smallest(random, memory.host, random.ranks, [&] { return random.plan().min_host; }, what);
    const WeightBudget budget = random.plan();
    int64_t there = 0;
    for (const nn::Parameter* p : budget.on_device) there += bytes_of(*p);
    if (memory.device > 0)
      EXPECT_LE(there + at_once(random.parameters, budget), memory.device) << what;
    else
      EXPECT_EQ(there, 0) << what;
    EXPECT_EQ(there == random.all, memory.device >= random.all) << what;
    EXPECT_EQ(budget.residence.all, random.all - there) << what;
    EXPECT_EQ(budget.residence.stays + budget.travelling, budget.host) << what;
    if (memory.host > 0) EXPECT_LE(budget.host, memory.host / random.ranks) << what;
    if (budget.needs_disk())
      EXPECT_GE(budget.travelling, std::min(3 * budget.chunk, budget.residence.all)) << what;
    else
      EXPECT_EQ(budget.host, budget.residence.all) << what;
  }
}

TEST(WeightBudget, FitsCpuAndNamesSmallest) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    Random random(seed, at::kCPU);
    run::MemoryConfig& memory = random.memory;
    const std::string what = "seed " + std::to_string(seed);
    if (memory.host > 0 && random.plan().min_host * random.ranks > memory.host)
      expect_smallest(random, memory.host, random.ranks, [&] { return random.plan().min_host; }, what);
    const WeightBudget budget = random.plan();
    EXPECT_TRUE(budget.on_device.empty()) << what;
    EXPECT_EQ(budget.residence.stays + budget.travelling, budget.host) << what;
    if (memory.host > 0) EXPECT_LE(budget.host, memory.host / random.ranks) << what;
    if (!budget.needs_disk()) EXPECT_EQ(budget.host, random.all) << what;
  }
}

}  // namespace
}  // namespace colossal::run::weight_budget_test
