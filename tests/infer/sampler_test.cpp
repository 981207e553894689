#include "colossal/infer/decoding/sampler.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "colossal/base/error.h"
#include "colossal/infer/request.h"

namespace colossal::infer::sampler_test {
namespace {

const at::Tensor kLogits = at::log(at::tensor({0.1, 0.4, 0.05, 0.3, 0.15}, at::kDouble));

std::map<int64_t, int> draw(const SamplingOptions& options, int times) {
  Sampler sampler(options);
  std::map<int64_t, int> counts;
  for (int i = 0; i < times; ++i) ++counts[sampler.next(kLogits)];
  return counts;
}

TEST(Sampler, TakesTheMostProbableTokenIfGreedy) {
  EXPECT_EQ(Sampler({}).next(kLogits), 1);
  EXPECT_EQ(Sampler({}).next(at::zeros({7})), 0);
}

// The tolerance is five standard deviations of a binomial count of 20,000 draws.
TEST(Sampler, TakesTheFirstOfEqualLogitsIfGreedy) {
  for (const int64_t words : {1, 7, 255, 256, 257, 1000}) {
    at::Tensor logits = at::randn({words}).round();  // integers, so that some are equal
    for (const at::Tensor& x : {logits, at::full({words}, -std::numeric_limits<float>::infinity()),
                                at::stack({logits, logits}, 1).select(1, 0), logits.to(at::kBFloat16)})
      EXPECT_EQ(pick(x, {.temperature = 0}, 0).item<int64_t>(), x.contiguous().argmax().item<int64_t>()) << words;
    logits[words / 2] = std::nanf("");
    EXPECT_EQ(pick(logits, {.temperature = 0}, 0).item<int64_t>(), words / 2) << "NaN counts as the largest";
  }
}

TEST(Sampler, DrawsInProportionToTheProbabilities) {
  const int n = 20000;
  for (const auto& [id, count] : draw({.temperature = 1, .seed = 3}, n)) {
    const double p = kLogits.exp()[id].item<double>();
    EXPECT_NEAR(count, n * p, 5 * std::sqrt(n * p * (1 - p))) << id;
  }
}

TEST(Sampler, KeepsTheMostProbableWithTopKAndTopP) {
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

TEST(Sampler, EqualsTheReferenceLoop) {
  const at::Tensor wide = at::arange(40, at::kDouble).mul(1.3).sin().mul(2);
  for (const auto type : {at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor logits = wide.to(type), numbers = logits.to(at::kDouble);  // narrow dtypes have ties
    const auto* first = numbers.const_data_ptr<double>();
    const std::vector<double> walked(first, first + numbers.numel());
    for (const SamplingOptions& options :
         {SamplingOptions{}, SamplingOptions{.temperature = 1}, SamplingOptions{.temperature = 0.5, .top_k = 7},
          SamplingOptions{.temperature = 2, .top_p = 0.6}, SamplingOptions{.temperature = 1, .top_k = 3, .top_p = 0.9},
          SamplingOptions{.temperature = 1, .top_k = 99, .top_p = 1e-9},
          SamplingOptions{.temperature = 1, .min_p = 0.3}, SamplingOptions{.temperature = 3, .top_k = 20, .min_p = 0.6},
          SamplingOptions{.temperature = 1, .min_p = 1}})
      for (int i = 0; i < 101; ++i) {
        const double uniform = i / 101.0;
        EXPECT_EQ(pick(logits, options, uniform).item<int64_t>(), pick_reference(walked, options, uniform))
            << type << ", temperature " << options.temperature << ", " << options.top_k << ", " << options.top_p
            << ", at " << uniform;
      }
  }
}

// Without filters only a part of the vocabulary is sorted.
TEST(Sampler, EqualsTheReferenceLoopOverAWholeVocabulary) {
  const at::Tensor ramp = at::arange(5000, at::kDouble);
  for (const double spread : {0.01, 1.0, 40.0, 4000.0}) {
    at::Tensor logits = ((ramp * 0.7).sin() * spread).to(at::kFloat);
    logits[17] = -std::numeric_limits<float>::infinity();
    const at::Tensor walked = logits.to(at::kDouble);
    const std::vector<double> words(walked.const_data_ptr<double>(), walked.const_data_ptr<double>() + walked.numel());
    for (int i = 0; i < 40; ++i) {
      const SamplingOptions options{.temperature = i % 2 == 0 ? 1 : 0.3};
      const double uniform = (i + 0.37) / 40;
      EXPECT_EQ(pick(logits, options, uniform).item<int64_t>(), pick_reference(words, options, uniform))
          << spread << " " << uniform;
    }
    EXPECT_EQ(pick(logits, {.temperature = 1}, 0).item<int64_t>(), pick_reference(words, {.temperature = 1}, 0));
  }
}

TEST(Sampler, KeepsTokensAboveMinP) {
  std::vector<int64_t> ids;
  // The limit is 0.37 * 0.4 = 0.148.
  for (const auto& [id, count] : draw({.temperature = 1, .min_p = 0.37}, 500)) ids.push_back(id);
  EXPECT_EQ(ids, (std::vector<int64_t>{1, 3, 4}));
}

std::vector<int64_t> greedy(SamplingOptions options, const std::vector<double>& logits, int times,
                            const std::vector<int64_t>& prompt = {}) {
  Sampler sampler(options, prompt);
  std::vector<int64_t> out;
  for (int i = 0; i < times; ++i) out.push_back(sampler.next(at::tensor(logits, at::kFloat)));
  return out;
}

using Ids = std::vector<int64_t>;

TEST(Sampler, PenalizesRepetitionByTheSignOfALogit) {
  // 2 / 1.2 < 1.9, then 1.9 / 1.2 < 2 / 1.2: the penalty applies to tokens of prompt and completion, once for any
  // count.
  EXPECT_EQ(greedy({.repetition_penalty = 1.2}, {2, 1.9, -1}, 4, {0, 0}), (Ids{1, 0, 0, 0}));
  EXPECT_EQ(greedy({.repetition_penalty = 1.2}, {-1, -1.1, -9}, 1, {0}), (Ids{1}));
  EXPECT_EQ(greedy({.repetition_penalty = 0.5}, {2, 1.9, 1}, 1, {2}), (Ids{0}));
  EXPECT_EQ(greedy({.repetition_penalty = 0.5}, {2, 1.9, 1.1}, 1, {2}), (Ids{2}));
}

TEST(Sampler, CountsPresenceAndFrequencyInTheCompletionOnly) {
  // Logits are 1, then 0.4 < 0.5, then 0.4 > -0.1 for all later draws.
  EXPECT_EQ(greedy({.presence_penalty = 0.6}, {1, 0.5}, 4, {0, 1}), (Ids{0, 1, 0, 0}));
  // Logits are 1, 0.7, 0.4 < 0.5, 0.4 > 0.2, 0.1 < 0.2, 0.1 > -0.1.
  EXPECT_EQ(greedy({.frequency_penalty = 0.3}, {1, 0.5}, 6, {0, 1}), (Ids{0, 0, 1, 0, 1, 0}));
}

TEST(Sampler, AddsBiasesToLogits) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(greedy({.logit_bias = {{0, kNever}}}, {2, 1, 0}, 2), (Ids{1, 1}));
  EXPECT_EQ(greedy({.logit_bias = {{0, -1.5}, {2, 0.75}}}, {2, 1, 0.5}, 1), (Ids{2}));
  EXPECT_THROW(greedy({.logit_bias = {{3, 1}}}, {2, 1, 0}, 1), Error);
}

TEST(Sampler, ReportsLogProbabilities) {
  const at::Tensor logits = at::tensor({0.5, 2.0, 2.0, -1.0}, at::kFloat);
  const at::Tensor want = logits.to(at::kDouble).log_softmax(0);
  const LogProbabilities told = log_probabilities(logits, 3, 3);
  EXPECT_EQ(told.own, want[3].item<double>());
  ASSERT_EQ(told.best.size(), 3U);
  EXPECT_EQ(told.best[0].first, 1);
  EXPECT_EQ(told.best[1].first, 2);
  EXPECT_EQ(told.best[2], std::pair(int64_t{0}, want[0].item<double>()));
  EXPECT_EQ(log_probabilities(logits, 0, 9).best.size(), 4U);
}

TEST(Sampler, ReturnsTheProbabilitiesItDrawsWith) {
  const auto of = [](const SamplingOptions& options) { return probabilities(kLogits, options); };
  const auto near = [](const at::Tensor& got, std::vector<double> want) {
    EXPECT_LT((got - at::tensor(want, at::kDouble)).abs().max().item<double>(), 1e-15) << got;
  };
  near(of({.temperature = 1}), {0.1, 0.4, 0.05, 0.3, 0.15});
  near(of({}), {0, 1, 0, 0, 0});
  near(of({.temperature = 1, .top_k = 2}), {0, 4 / 7.0, 0, 3 / 7.0, 0});
  near(of({.temperature = 1, .top_p = 0.71, .min_p = 0.3}), {0, 40 / 85.0, 0, 30 / 85.0, 15 / 85.0});
}

// Sequences over 8 tokens in which each token depends only on the one before: the model and its draft are tables.
// Compares pairs of neighbours with their probabilities, with 63 degrees of freedom, and tokens per step with (1 - a^(k
// + 1)) / (1 - a).
// Source: Leviathan et al., arXiv:2211.17192, equation 1.
TEST(Sampler, JudgesDraftsByTheRuleOfSpeculativeSampling) {
  constexpr int64_t kWords = 8, kDraftTokens = 3, kSteps = 9000;
  const at::Tensor table = at::arange(kWords * kWords, at::kDouble).mul(1.7).sin().view({kWords, kWords}).mul(1.2);
  // The draft depends less on the token before. Each row is a circular shift of the first, so that a is the same for
  // all.
  std::vector<at::Tensor> own, draft;
  for (int64_t word = 0; word < kWords; ++word) {
    own.push_back(table[0].roll(word));
    draft.push_back((table[0] + 0.8 * table[5]).roll(word));
  }
  const SamplingOptions options{.temperature = 0.9, .top_p = 0.97, .seed = 4};
  const double a = at::minimum(probabilities(own[0], options), probabilities(draft[0], options)).sum().item<double>();
  ASSERT_GT(a, 0.6);
  ASSERT_LT(a, 0.8);
  Sampler sampler(options);
  at::Tensor counts = at::zeros({kWords, kWords}, at::kDouble);
  int64_t last = 0, tokens = 0;
  const auto push = [&](int64_t token) {
    counts[last][token] += 1;
    last = token, ++tokens;
  };
  for (int64_t step = 0; step < kSteps; ++step) {
    Sampler drafting = sampler.for_draft();
    std::vector<DraftedToken> drafted;
    for (int64_t word = last; drafted.size() < kDraftTokens; word = drafted.back().token)
      drafted.push_back(drafting.draft(draft[word]));
    size_t right = 0;
    while (right < kDraftTokens) {
      push(sampler.judge(own[last], drafted[right]));
      if (last != drafted[right].token) break;
      ++right;
    }
    if (right == kDraftTokens) push(sampler.next(own[last]));
  }
  const double mean = static_cast<double>(tokens) / kSteps, expected = (1 - std::pow(a, kDraftTokens + 1)) / (1 - a);
  EXPECT_NEAR(mean, expected, 0.01 * expected);
  double sum = 0;
  int64_t cells = 0;
  for (int64_t word = 0; word < kWords; ++word) {
    const at::Tensor wanted = probabilities(own[word], options) * counts[word].sum();
    sum += ((counts[word] - wanted).square() / wanted).masked_fill(wanted.eq(0), 0).sum().item<double>();
    cells += wanted.gt(0).sum().item<int64_t>() - 1;
    EXPECT_EQ(counts[word].masked_select(wanted.eq(0)).sum().item<double>(), 0);
  }
  EXPECT_LT(sum, cells + 4 * std::sqrt(2.0 * static_cast<double>(cells)));
}

TEST(Sampler, IgnoresDraftTokensThatWereNotSampled) {
  Sampler sampler({.temperature = 1, .seed = 9}), other({.temperature = 1, .seed = 9});
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(sampler.judge(kLogits, {i % 5}), other.next(kLogits));
}

TEST(Sampler, DrawsATokenFromNanLogits) {
  const at::Tensor none = at::full({5}, std::numeric_limits<double>::quiet_NaN());
  const int64_t token = Sampler({.temperature = 1, .min_p = 0.1}).next(none);
  EXPECT_TRUE(token >= 0 && token < 5) << token;
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

TEST(Sampler, RefusesInvalidOptions) {
  EXPECT_THROW(Sampler({.temperature = -1}), Error);
  EXPECT_THROW(Sampler({.min_p = 1.1}), Error);
  EXPECT_THROW(Sampler({.repetition_penalty = 0}), Error);
  EXPECT_THROW(Sampler({.presence_penalty = std::numeric_limits<double>::infinity()}), Error);
  EXPECT_THROW(Sampler({.logit_bias = {{-1, 0}}}), Error);
  EXPECT_THROW(Sampler({.top_p = 0}), Error);
  EXPECT_THROW(Sampler({.top_k = -1}), Error);
}

}  // namespace
}  // namespace colossal::infer::sampler_test
