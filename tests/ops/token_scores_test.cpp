// Log-probabilities and entropies of labels: published values, finite differences, slices, and rows that are left out.
#include "colossal/ops/token_scores.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <mutex>

#include "colossal/base/error.h"
#include "colossal/ops/counted_rows.h"
#include "colossal/ops/cross_entropy.h"
#include "colossal/ops/linear_token_scores.h"
#include "colossal/tensor/flops.h"
#include "ops/compare.h"

namespace colossal::ops::token_scores_test {
namespace {

/// The fixture of the golden values: 4 rows of 6 tokens, 18 of which count, over 7 words. The weight is the identity,
/// so the hidden states are the logits.
struct Golden {
  static constexpr int64_t kRows = 4, kTokens = 6, kWords = 7;
  at::Tensor logits = (at::arange(kRows * kTokens * kWords, at::kDouble) * 0.3 + 0.1).sin().mul(2).view({-1, kWords}),
             weight = at::eye(kWords, at::kDouble), labels = at::full({kRows * kTokens}, kIgnoredLabel, at::kLong);
  Golden() {
    const std::vector<int64_t> lengths{6, 4, 5, 3};
    for (int64_t b = 0; b < kRows; ++b)
      for (int64_t t = 0; t < lengths[static_cast<size_t>(b)]; ++t)
        labels[b * kTokens + t] = (3 * b + 2 * t + b * t) % kWords;
  }
  TokenScores scores(const ScoreOptions& options = {}) const {
    return linear_token_scores(logits, weight, {}, labels, options);
  }
};
constexpr double kCounted = 18;

/// Compares with a value of which 12 digits are given.
void expect_digits(const at::Tensor& got, double want) {
  const double unit = std::pow(10, std::floor(std::log10(std::abs(want))) - 11);
  EXPECT_NEAR(got.item<double>(), want, unit * 0.51);
}

TEST(TokenScores, EqualPublishedValues) {
  const Golden g;
  const TokenScores scores = g.scores({.entropy = true});
  expect_digits(scores.log_probabilities[0], -3.305813550725);                            // G1
  expect_digits(scores.log_probabilities[1], -1.860170027904);                            // G1
  expect_digits(scores.log_probabilities.sum(), -36.9447465676);                          // G1
  expect_digits(-scores.log_probabilities.sum() / kCounted, 2.05248592042);               // G2
  expect_digits(scores.entropies.sum() / kCounted, 1.70082294359);                        // G5
  expect_digits(scores.entropies[0], 1.81679308428);                                      // G5
  expect_digits(g.scores({.temperature = 0.7}).log_probabilities.sum(), -40.2396235223);  // G6
}

TEST(TokenScores, GiveThePublishedGradient) {
  Golden g;
  g.logits.requires_grad_();
  (-g.scores().log_probabilities.sum() / kCounted).backward();  // G4
  const at::Tensor gradient = g.logits.grad();
  expect_digits(gradient[0][0], -0.0535183684829);
  expect_digits(gradient[0][1], 0.00363547516445);
  expect_digits(gradient[0][2], 0.00605169568656);
  expect_digits(gradient.norm(), 0.223098377045);
}

/// Arguments of the operator other than tensors.
struct Case {
  ScoreOptions options{};
  double soft_cap = 0;
  int64_t slice = 0, words = 0;
  bool has_bias = true, ignores = false;
};

std::vector<Case> cases() {
  return {{},
          {.options = {.entropy = true}},
          {.options = {.temperature = 0.6, .entropy = true}, .has_bias = false},
          {.options = {.temperature = 1.7, .entropy = true}, .soft_cap = 1.5, .slice = 4, .words = 8},
          {.options = {.entropy = true}, .slice = 1, .words = 37, .ignores = true},
          {.options = {.temperature = 2, .entropy = true}, .soft_cap = 3, .slice = 5, .words = 1, .ignores = true},
          {.slice = 100, .words = 64, .ignores = true}};
}

constexpr int64_t kTokens = 9, kHidden = 5, kWords = 37;

at::Tensor labels_of(bool ignores) {
  const at::Tensor all = (at::arange(kTokens, at::kLong) * 7 + 3).remainder(kWords);
  return ignores ? all.masked_fill(at::arange(kTokens).remainder(3).eq(1), kIgnoredLabel) : all;
}

Tensors tensors_of(const Case& c) {
  Tensors t{normal({kTokens, kHidden}, 1), normal({kWords, kHidden}, 2)};
  if (c.has_bias) t.push_back(normal({kWords}, 3));
  return t;
}

Operator scores_of(const Case& c) {
  return [c](const Tensors& t) {
    const TokenScores s = linear_token_scores(t[0], t[1], c.has_bias ? t[2] : at::Tensor(), labels_of(c.ignores),
                                              c.options, c.soft_cap, {.slice = c.slice, .words = c.words});
    return c.options.entropy ? Tensors{s.log_probabilities, s.entropies} : Tensors{s.log_probabilities};
  };
}

/// Computes the same from whole logits.
Operator reference_of(const Case& c) {
  return [c](const Tensors& t) {
    at::Tensor logits = t[0].matmul(t[1].t());
    if (c.has_bias) logits = logits + t[2];
    if (c.soft_cap > 0) logits = (logits / c.soft_cap).tanh() * c.soft_cap;
    const TokenScores s = token_scores(logits, labels_of(c.ignores), c.options);
    return c.options.entropy ? Tensors{s.log_probabilities, s.entropies} : Tensors{s.log_probabilities};
  };
}

TEST(TokenScores, EqualWholeLogitsForAnySlicing) {
  for (const auto type : float_types())
    for (const Case& c : cases()) {
      // A CPU that multiplies bf16 rounds logits, d(logits) and d(hidden) or d(weight). An entropy's gradient amplifies
      // the first by the size of its logarithms, here up to twice 10.
      const double of_products = type == at::kBFloat16 ? 20 : 0;
      SCOPED_TRACE(concat("temperature ", c.options.temperature, ", slice ", c.slice, ", words ", c.words));
      expect_equal_operators(scores_of(c), reference_of(c), tensors_of(c), type, 64 * kWords, of_products);
    }
}

// The slope of these symmetric differences has an error of about e^4 times the fifth derivative, and of eps / e times
// the loss. Along a direction of length 1 both are below 10^4 here.
TEST(TokenScores, HaveTheGradientsOfFiniteDifferences) {
  constexpr double kStep = 1e-3, kBound = 1e4 * (kStep * kStep * kStep * kStep + 0x1p-52 / kStep);
  for (const Case& c : cases()) {
    const Tensors inputs = tensors_of(c);
    const auto loss = [&](const Tensors& t) {
      at::Tensor sum = at::zeros({}, at::kDouble);
      uint64_t seed = 20;
      for (const at::Tensor& x : scores_of(c)(t)) sum = sum + (x * normal({kTokens}, ++seed)).sum() + x.square().sum();
      return sum;
    };
    Tensors leaves;
    for (const at::Tensor& x : inputs) leaves.push_back(x.clone().requires_grad_());
    loss(leaves).backward();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const at::Tensor drawn = normal(inputs[i].sizes(), 40 + i), direction = drawn / drawn.norm();
      const auto difference = [&](double step) {
        Tensors up = inputs, down = inputs;
        up[i] = inputs[i] + direction * step, down[i] = inputs[i] - direction * step;
        return (loss(up) - loss(down)).item<double>();
      };
      const double slope = (8 * difference(kStep) - difference(2 * kStep)) / (12 * kStep);
      const double gradient = (leaves[i].grad() * direction).sum().item<double>();
      EXPECT_NEAR(gradient, slope, kBound * std::max(1.0, std::abs(slope)))
          << "input " << i << ", temperature " << c.options.temperature << ", words " << c.words;
    }
  }
}

/// Counts the rows of all products in which one side is the vocabulary.
class ProductRows {
 public:
  ProductRows()
      : listener_([this](double, const tensor::Operation& what) {
          const std::lock_guard lock(mutex_);
          if (what.kind == tensor::Operation::Kind::Product) sum_ += what.m * what.n * what.k;
        }) {}
  int64_t operator()() const { return sum_ / (kWords * kHidden); }

 private:
  std::mutex mutex_;
  int64_t sum_ = 0;
  tensor::OperationListener listener_;
};

TEST(TokenScores, LeaveOutRowsWithoutALabel) {
  const at::Tensor labels = labels_of(true), ignored = labels.eq(kIgnoredLabel);
  const int64_t counted = kTokens - ignored.sum().item<int64_t>();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  at::Tensor hidden = normal({kTokens, kHidden}, 1).masked_fill(ignored.unsqueeze(1), nan).requires_grad_(),
             weight = normal({kWords, kHidden}, 2).requires_grad_();
  const ProductRows rows;
  const TokenScores scores = linear_token_scores(hidden, weight, {}, labels, {.entropy = true});
  EXPECT_EQ(rows(), counted);
  EXPECT_EQ(scores.log_probabilities.masked_select(ignored).abs().sum().item<double>(), 0);
  EXPECT_EQ(scores.entropies.masked_select(ignored).abs().sum().item<double>(), 0);
  (scores.log_probabilities + scores.entropies).sum().backward();
  EXPECT_EQ(rows(), 4 * counted);
  EXPECT_EQ(hidden.grad().masked_select(ignored.unsqueeze(1)).abs().sum().item<double>(), 0);
  EXPECT_TRUE(hidden.grad().isfinite().all().item<bool>());
  EXPECT_TRUE(weight.grad().isfinite().all().item<bool>());
}

TEST(TokenScores, SupportNoLabelAtAll) {
  for (const int64_t tokens : {0, 3}) {
    at::Tensor hidden = normal({tokens, kHidden}, 1).requires_grad_(),
               weight = normal({kWords, kHidden}, 2).requires_grad_();
    const TokenScores scores =
        linear_token_scores(hidden, weight, {}, at::full({tokens}, kIgnoredLabel, at::kLong), {.entropy = true});
    ASSERT_EQ(scores.log_probabilities.numel(), tokens);
    (scores.log_probabilities.sum() + scores.entropies.sum()).backward();
    EXPECT_EQ(hidden.grad().abs().sum().item<double>(), 0);
    EXPECT_EQ(weight.grad().abs().sum().item<double>(), 0);
  }
}

// The head is trained alone, or only the layers before it.
TEST(TokenScores, ComputeOnlyRequestedGradients) {
  const Case c{.options = {.entropy = true}, .slice = 4, .words = 8};
  const Tensors all = values_and_gradients(scores_of(c), tensors_of(c), at::kDouble);
  for (size_t wanted = 0; wanted < 3; ++wanted) {
    Tensors leaves = tensors_of(c);
    leaves[wanted].requires_grad_();
    torch::autograd::backward(scores_of(c)(leaves), {normal({kTokens}, 1000), normal({kTokens}, 1001)});
    for (size_t i = 0; i < leaves.size(); ++i) {
      ASSERT_EQ(leaves[i].grad().defined(), i == wanted);
      if (i == wanted) expect_close(leaves[i].grad(), all[2 + i], at::kDouble, kWords, concat("gradient ", i));
    }
  }
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(
      scores_of(c)({tensors_of(c)[0].requires_grad_(), tensors_of(c)[1], tensors_of(c)[2]})[0].requires_grad());
}

TEST(TokenScores, AddToAGradientThatExists) {
  const Case c{.options = {.entropy = true}, .slice = 4, .words = 8};
  for (const auto type : {at::kDouble, at::kBFloat16}) {
    const Tensors once = values_and_gradients(scores_of(c), tensors_of(c), type);
    Tensors leaves;
    for (const at::Tensor& x : tensors_of(c)) leaves.push_back(x.to(type, false, true).requires_grad_());
    for (int pass = 0; pass < 2; ++pass) {
      const Tensors outputs = scores_of(c)(leaves);
      torch::autograd::backward(outputs, {normal({kTokens}, 1000).to(outputs[0].scalar_type()),
                                          normal({kTokens}, 1001).to(outputs[0].scalar_type())});
    }
    for (size_t i = 0; i < leaves.size(); ++i)
      expect_close(leaves[i].grad(), 2 * once[2 + i], type, kWords, concat("gradient ", i), 2);
  }
}

// The entropy of one word is 0, that of equal logits log V; logits far apart and below the range of e^x give no NaN.
TEST(TokenScores, KeepTheirLimits) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    const at::Tensor equal = at::zeros({1, 1}, type), far = at::tensor({1e4, -1e4, -1e4}, type).view({3, 1});
    const TokenScores alike = linear_token_scores(equal, at::zeros({kWords, 1}, type), {}, at::zeros({1}, at::kLong),
                                                  {.entropy = true}, 0, {.words = 5});
    const double words = kWords, bound = 4 * epsilon_of(type) * std::log(words);
    EXPECT_NEAR(alike.entropies.item<double>(), std::log(words), bound);
    EXPECT_NEAR(alike.log_probabilities.item<double>(), -std::log(words), bound);
    at::Tensor one = at::ones({1, 1}, type).requires_grad_();
    const TokenScores certain =
        linear_token_scores(one, far, {}, at::zeros({1}, at::kLong), {.entropy = true}, 0, {.words = 2});
    EXPECT_EQ(certain.entropies.item<double>(), 0);
    EXPECT_EQ(certain.log_probabilities.item<double>(), 0);
    (certain.entropies + certain.log_probabilities).sum().backward();
    EXPECT_EQ(one.grad().item<double>(), 0);
  }
}

TEST(TokenScores, RefuseInvalidArguments) {
  const at::Tensor hidden = normal({2, 3}, 1), weight = normal({4, 3}, 2), labels = at::zeros({2}, at::kLong);
  const auto says = [](const char* what) { return testing::ThrowsMessage<Error>(testing::HasSubstr(what)); };
  EXPECT_THAT([&] { linear_token_scores(hidden, weight, {}, labels, {.temperature = 0}); },
              says("the temperature must be above 0: got 0; 1 leaves the logits as they are"));
  EXPECT_THAT([&] { token_scores(hidden, labels, {.temperature = -1}); }, says("above 0: got -1"));
  EXPECT_THAT([&] { linear_token_scores(hidden, weight, {}, labels + 4); }, says("token ids below 4 or -100: got 4"));
  EXPECT_THAT([&] { linear_token_scores(hidden, weight, normal({3}, 1), labels); }, says("the bias must be [rows]"));
  EXPECT_THAT([&] { linear_token_scores(hidden, weight, {}, labels, {}, -1); }, says("soft_cap must be 0"));
}

TEST(TokenScores, ExchangeThreeOrFourNumbersPerToken) {
  const at::Tensor hidden = normal({kTokens, kHidden}, 1), weight = normal({kWords, kHidden}, 2),
                   labels = labels_of(false);
  for (const bool entropy : {false, true}) {
    struct Counting : RankReduction {
      std::vector<std::vector<int64_t>> maxima, sums;
      void max(at::Tensor& x) override { maxima.push_back(x.sizes().vec()); }
      void sum(at::Tensor& x) override { sums.push_back(x.sizes().vec()); }
    } counting;
    linear_token_scores(hidden, weight, {}, labels, {.entropy = entropy}, 0, {.reduction = &counting, .slice = 2});
    EXPECT_THAT(counting.maxima, testing::ElementsAre(std::vector<int64_t>{1, kTokens}));
    EXPECT_THAT(counting.sums, testing::ElementsAre(std::vector<int64_t>{entropy ? 3 : 2, 1, kTokens}));
  }
}

TEST(LinearCrossEntropy, LeavesOutRowsWithoutALabel) {
  const at::Tensor labels = labels_of(true), ignored = labels.eq(kIgnoredLabel);
  const int64_t counted = kTokens - ignored.sum().item<int64_t>();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor known = normal({kTokens, kHidden}, 1);
  at::Tensor hidden = known.masked_fill(ignored.unsqueeze(1), nan).requires_grad_(),
             weight = normal({kWords, kHidden}, 2).requires_grad_();
  const ProductRows rows;
  const at::Tensor loss = linear_cross_entropy(hidden, weight, labels);
  loss.backward();
  EXPECT_EQ(rows(), 3 * counted);
  expect_close(loss, cross_entropy(known.matmul(weight.detach().t()), labels), at::kDouble, kWords, "loss");
  EXPECT_TRUE(hidden.grad().isfinite().all().item<bool>());
  EXPECT_EQ(hidden.grad().masked_select(ignored.unsqueeze(1)).abs().sum().item<double>(), 0);
  EXPECT_TRUE(weight.grad().isfinite().all().item<bool>());
}

// Two ranks with 1 and 3 labels of 4 rows take 3 rows each, the first one two rows of zeros.
TEST(CountedRows, PadRanksToTheLongest) {
  const at::Tensor labels = at::tensor({-100, 5, -100, -100, 7, -100, 8, 9}, at::kLong).view({2, 4});
  const at::Tensor x = at::arange(8, at::kDouble).view({4, 2}) + 1;
  const CountedRows first(labels, 0), second(labels, 1);
  EXPECT_TRUE(at::equal(first.labels(), at::tensor({5, -100, -100, 7, 8, 9}, at::kLong).view({2, 3})));
  EXPECT_TRUE(at::equal(first.of(x), at::tensor({3, 4, 0, 0, 0, 0}, at::kDouble).view({3, 2})));
  EXPECT_TRUE(at::equal(second.of(x), at::tensor({1, 2, 5, 6, 7, 8}, at::kDouble).view({3, 2})));
  const at::Tensor values = at::arange(6, at::kDouble).view({2, 3}) + 1;
  EXPECT_TRUE(at::equal(second.put_back(values), at::tensor({0, 1, 0, 0, 4, 0, 5, 6}, at::kDouble).view({2, 4})));
  EXPECT_TRUE(at::equal(CountedRows(labels, 0, 4).of(x).narrow(0, 1, 3), at::zeros({3, 2}, at::kDouble)));
  EXPECT_FALSE(CountedRows(labels.clamp_min(0), 0).chooses());
  EXPECT_TRUE(at::equal(counts_of(labels), at::tensor({1, 3}, at::kLong)));
  EXPECT_THROW(CountedRows(labels, 0, 2), Error);
}

TEST(CountedRows, CountAllLabelsOnMeta) {
  const CountedRows rows(at::empty({4}, at::TensorOptions().dtype(at::kLong).device(at::kMeta)));
  EXPECT_FALSE(rows.chooses());
}

/// Returns the product, whose rows do not depend on each other.
at::Tensor product_by_row(const at::Tensor& x, const at::Tensor& weight) {
  return (x.unsqueeze(1) * weight).to(at::kDouble).sum(-1).to(x.scalar_type());
}

/// A product with a weight, of which this rank has some rows.
struct RowsOfWeight : Projection {
  explicit RowsOfWeight(at::Tensor weight) : weight(std::move(weight)) {}
  at::Tensor logits(const at::Tensor& hidden, const at::Tensor&) override { return product_by_row(hidden, weight); }
  void gradients(const at::Tensor&, at::Tensor*, at::Tensor*) override {}
  at::Tensor weight;
};

/// The other of two ranks of which each has a part of the words.
struct OtherRank : RankReduction {
  std::function<void(at::Tensor&)> max_with, sum_with;
  void max(at::Tensor& x) override { max_with(x); }
  void sum(at::Tensor& x) override { sum_with(x); }
};

// Generated tokens are scored from whole logits, trained ones by this operator over the words of each rank.
TEST(TokenScores, GiveLogitsTheBitsOfProjections) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble})
    for (const double temperature : {1.0, 0.7}) {
      const ScoreOptions options{.temperature = temperature, .entropy = true};
      constexpr int64_t kAll = 61, kRoom = 31, kManyTokens = 75;
      const at::Tensor hidden = normal({kManyTokens, kHidden}, 1).to(type),
                       weight = normal({kAll, kHidden}, 2).to(type),
                       labels = (at::arange(kManyTokens, at::kLong) * 7 + 3).remainder(kAll),
                       logits = product_by_row(hidden, weight);
      const TokenScores whole =
          linear_token_scores(hidden, weight, {}, labels, options, 0,
                              {.products = [&] { return std::make_unique<RowsOfWeight>(weight); }, .slice = 16});
      const auto expect_bits = [&](const TokenScores& want, int64_t room, const std::string& what) {
        for (int64_t token = 0; token < kManyTokens; token += 1 + token % 5) {  // one row, and all rows
          const TokenScores one = logit_scores(logits.narrow(0, token, 1), labels.narrow(0, token, 1), options, room);
          EXPECT_TRUE(at::equal(one.log_probabilities[0], want.log_probabilities[token])) << what << token;
          EXPECT_TRUE(at::equal(one.entropies[0], want.entropies[token])) << what << token;
        }
        EXPECT_TRUE(at::equal(logit_scores(logits, labels, options, room).log_probabilities, want.log_probabilities));
      };
      expect_bits(whole, 0, "one rank, token ");

      // Two ranks, one after the other: they send maxima in the first pass, and sums relative to these in the second.
      std::vector<at::Tensor> largest(2), sums(2);
      std::vector<TokenScores> of_rank(2);
      for (int pass = 0; pass < 3; ++pass)
        for (int64_t rank = 0; rank < 2; ++rank) {
          const int64_t first = rank * kRoom, valid = rank == 0 ? kRoom : kAll - kRoom;
          OtherRank other;
          other.max_with = [&](at::Tensor& x) {
            if (pass == 0) largest[rank] = x.clone();
            if (pass > 0) x.copy_(at::maximum(x, largest[1 - rank]));
          };
          other.sum_with = [&](at::Tensor& x) {
            if (pass == 1) sums[rank] = x.clone();
            if (pass == 2) x.add_(sums[1 - rank]);
          };
          const at::Tensor own = weight.narrow(0, first, valid);
          of_rank[rank] = linear_token_scores(hidden, own, {}, labels, options, 0,
                                              {.range = {first, valid},
                                               .reduction = &other,
                                               .products = [&] { return std::make_unique<RowsOfWeight>(own); },
                                               .slice = 16});
        }
      for (const TokenScores& scores : of_rank)
        EXPECT_TRUE(
            at::equal(logit_scores(logits, labels, options, kRoom).log_probabilities, scores.log_probabilities));
    }
}

}  // namespace
}  // namespace colossal::ops::token_scores_test
