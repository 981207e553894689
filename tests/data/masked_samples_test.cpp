#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/data/texts/samples.h"

namespace colossal::data::masked_samples_test {
namespace {

constexpr int64_t kWords = 1000, kMask = 1000, kEnd = 7;

Corpus repeating(int64_t size) {
  std::vector<uint32_t> tokens(size);
  for (int64_t i = 0; i < size; ++i) tokens[i] = i % 50 == 49 ? kEnd : 100 + i % 800;
  return Corpus::of(std::move(tokens), kEnd, kWords);
}

MaskedSamples samples_of(const Masking& masking, int64_t sequence = 200) {
  return MaskedSamples(repeating(20001), sequence, Documents::Separate, masking);
}

tensor::Batch filled(const Samples& samples, int64_t index, uint64_t seed) {
  tensor::Batch batch = samples.make(1);
  samples.fill(index, seed, batch, 0);
  return batch;
}

int64_t count(const at::Tensor& mask) { return mask.sum().item<int64_t>(); }

TEST(MaskedSamples, HidesItsFractionAndLabelsItWithTheTokens) {
  const MaskedSamples samples = samples_of({.mask_id = kMask, .vocabulary = kWords});
  const TextSamples texts(repeating(20001), 200);
  int64_t masked = 0, kept = 0, labelled = 0;
  for (int64_t i = 0; i < samples.count(); ++i) {
    const tensor::Batch batch = filled(samples, i, 900 + i), whole = filled(texts, i, 0);
    const at::Tensor asked = batch.at("labels").ne(kIgnored);
    EXPECT_EQ(count(asked), std::lround(0.15 * 196));  // 4 of the 200 tokens are end tokens
    EXPECT_TRUE(at::equal(batch.at("labels").masked_select(asked), whole.at("ids").masked_select(asked)));
    EXPECT_TRUE(at::equal(batch.at("ids").masked_select(asked.logical_not()),
                          whole.at("ids").masked_select(asked.logical_not())));
    EXPECT_EQ(count(asked.logical_and(whole.at("ids").eq(kEnd))), 0);
    EXPECT_TRUE(at::equal(batch.at("documents"), whole.at("documents")));
    EXPECT_TRUE(at::equal(batch.at("positions"), whole.at("positions")));
    labelled += count(asked);
    masked += count(batch.at("ids").eq(kMask));
    kept += count(asked.logical_and(batch.at("ids").eq(whole.at("ids"))));
  }
  // A count of n draws with probability p has the deviation sqrt(n p (1 - p)). A difference of six deviations has a
  // probability of 10^-8.
  const auto n = static_cast<double>(labelled);
  EXPECT_NEAR(static_cast<double>(masked), 0.8 * n, 6 * std::sqrt(n * 0.8 * 0.2));
  EXPECT_NEAR(static_cast<double>(kept), 0.1 * n, 6 * std::sqrt(n * 0.1 * 0.9) + n / kWords);
}

TEST(MaskedSamples, DependsOnTheSeedAlone) {
  const MaskedSamples samples = samples_of({.mask_id = kMask, .vocabulary = kWords});
  const tensor::Batch a = filled(samples, 3, 11), again = filled(samples, 3, 11), other = filled(samples, 3, 12);
  EXPECT_TRUE(at::equal(a.at("ids"), again.at("ids")) && at::equal(a.at("labels"), again.at("labels")));
  EXPECT_FALSE(at::equal(a.at("labels"), other.at("labels")));
}

TEST(MaskedSamples, UsesTheFractionsOfTheCaller) {
  const auto hidden = [](const Masking& masking) {
    const tensor::Batch batch = filled(samples_of(masking), 0, 5);
    return std::vector<int64_t>{count(batch.at("labels").ne(kIgnored)), count(batch.at("ids").eq(kMask))};
  };
  const Masking all{.share = 1, .random = 0, .kept = 0, .mask_id = kMask, .vocabulary = kWords};
  EXPECT_THAT(hidden(all), testing::ElementsAre(196, 196));
  Masking kept = all;
  kept.kept = 1;
  EXPECT_THAT(hidden(kept), testing::ElementsAre(196, 0));
  Masking few = all;
  few.share = 1e-9;
  EXPECT_THAT(hidden(few), testing::ElementsAre(1, 1));
}

TEST(MaskedSamples, HasNoLabelsForEndTokensAlone) {
  const MaskedSamples samples(Corpus::of(std::vector<uint32_t>(9, kEnd), kEnd, kWords), 4, Documents::Separate,
                              {.mask_id = kMask, .vocabulary = kWords});
  EXPECT_EQ(count(filled(samples, 1, 3).at("labels").ne(kIgnored)), 0);
}

TEST(MaskedSamples, RequiresAMaskToken) {
  EXPECT_THROW(samples_of({.vocabulary = kWords}), Error);
  EXPECT_THROW(samples_of({.mask_id = 3}), Error);
}

TEST(MaskedSamples, DescribesItsTraits) {
  const Masking masking{.mask_id = kMask, .vocabulary = kWords};
  Masking other = masking;
  other.share = 0.2;
  EXPECT_NE(samples_of(masking).traits(), samples_of(other).traits());
}

}  // namespace
}  // namespace colossal::data::masked_samples_test
