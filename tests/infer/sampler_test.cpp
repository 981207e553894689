#include "colossal/infer/sampler.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "colossal/base/error.h"

namespace colossal::infer::sampler_test {
namespace {

const at::Tensor kLogits = at::log(at::tensor({0.1, 0.4, 0.05, 0.3, 0.15}, at::kDouble));

std::map<int64_t, int> draw(const SamplingOptions& options, int times) {
  Sampler sampler(options);
  std::map<int64_t, int> counts;
  for (int i = 0; i < times; ++i) ++counts[sampler.next(kLogits)];
  return counts;
}

TEST(Sampler, GreedyTakesTheMostProbableAndTheLowerIdOfATie) {
  EXPECT_EQ(Sampler({}).next(kLogits), 1);
  EXPECT_EQ(Sampler({}).next(at::zeros({7})), 0);
}

// 20,000 draws: five standard deviations of a binomial count.
TEST(Sampler, DrawsInProportionToTheProbabilities) {
  const int n = 20000;
  for (const auto& [id, count] : draw({.temperature = 1, .seed = 3}, n)) {
    const double p = kLogits.exp()[id].item<double>();
    EXPECT_NEAR(count, n * p, 5 * std::sqrt(n * p * (1 - p))) << id;
  }
}

TEST(Sampler, TopKAndTopPKeepTheMostProbable) {
  auto ids = [](const std::map<int64_t, int>& counts) {
    std::vector<int64_t> out;
    for (const auto& [id, count] : counts) out.push_back(id);
    return out;
  };
  EXPECT_EQ(ids(draw({.temperature = 1, .top_k = 2}, 500)), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(ids(draw({.temperature = 1, .top_p = 0.69}, 500)), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(ids(draw({.temperature = 1, .top_p = 0.71}, 500)), (std::vector<int64_t>{1, 3, 4}));
  EXPECT_EQ(ids(draw({.temperature = 1, .top_p = 1e-9}, 500)), (std::vector<int64_t>{1}));
}

TEST(Sampler, IsAFunctionOfTheSeed) {
  auto sequence = [](int64_t seed) {
    Sampler sampler({.temperature = 1, .seed = seed});
    std::vector<int64_t> out;
    for (int i = 0; i < 50; ++i) out.push_back(sampler.next(kLogits));
    return out;
  };
  EXPECT_EQ(sequence(1), sequence(1));
  EXPECT_NE(sequence(1), sequence(2));
}

TEST(Sampler, RefusesOptionsThatMeanNothing) {
  EXPECT_THROW(Sampler({.temperature = -1}), Error);
  EXPECT_THROW(Sampler({.top_p = 0}), Error);
  EXPECT_THROW(Sampler({.top_k = -1}), Error);
}

}  // namespace
}  // namespace colossal::infer::sampler_test
