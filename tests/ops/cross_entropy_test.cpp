#include "colossal/ops/cross_entropy.h"

#include "colossal/base/error.h"
#include "colossal/ops/soft_cap.h"
#include "ops/compare.h"

namespace colossal::ops::cross_entropy_test {
namespace {

at::Tensor labels_of(int64_t tokens, int64_t words, bool with_ignored) {
  auto labels = (at::arange(tokens, at::kLong) * 7 + 3).remainder(words);
  if (with_ignored)
    for (int64_t t = 1; t < tokens; t += 3) labels[t] = kIgnoredLabel;
  return labels;
}

Operator dense(const at::Tensor& labels) {
  return [labels](const Tensors& t) { return Tensors{cross_entropy(at::matmul(t[0], t[1].t()), labels)}; };
}

TEST(LinearCrossEntropy, EqualsTheDenseLossForAnySlicing) {
  for (const auto type : float_types())
    for (const int64_t slice : {0, 1, 4, 100})
      for (const auto& [tokens, words] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {9, 37}, {33, 130}}) {
        const auto labels = labels_of(tokens, words, slice == 4);
        // A CPU that multiplies bf16 rounds the logits, and d(hidden) or d(weight) of a slice.
        const double of_products = type == at::kBFloat16 ? 2 : 0;
        expect_equal_operators(
            [&](const Tensors& t) { return Tensors{linear_cross_entropy(t[0], t[1], labels, {}, nullptr, slice)}; },
            dense(labels), {normal({tokens, 20}, 1), normal({words, 20}, 2) * 0.3}, type, words + tokens + 20,
            of_products);
      }
}

TEST(LinearCrossEntropy, EqualsTheDenseLossWithBias) {
  const auto labels = labels_of(9, 37, true);
  const Operator dense_with_bias = [labels](const Tensors& t) {
    return Tensors{cross_entropy(at::matmul(t[0], t[1].t()) + t[2], labels)};
  };
  for (const auto type : float_types())
    for (const int64_t slice : {0, 1, 4})
      expect_equal_operators(
          [&](const Tensors& t) {
            return Tensors{linear_cross_entropy(t[0], t[1], labels, {}, nullptr, slice, nullptr, t[2])};
          },
          dense_with_bias, {normal({9, 20}, 1), normal({37, 20}, 2) * 0.3, normal({37}, 3)}, type, 37 + 9 + 20,
          type == at::kBFloat16 ? 2 : 0);
}

TEST(LinearCrossEntropy, EqualsTheDenseLossOfCappedLogits) {
  const auto labels = labels_of(9, 37, true);
  const double cap = 2;  // below most of the logits
  const Operator capped = [labels, cap](const Tensors& t) {
    return Tensors{cross_entropy(cap * ((at::matmul(t[0], t[1].t()) + t[2]) / cap).tanh(), labels)};
  };
  for (const auto type : float_types())
    for (const int64_t slice : {0, 1, 4})
      expect_equal_operators(
          [&](const Tensors& t) {
            return Tensors{linear_cross_entropy(t[0], t[1], labels, {}, nullptr, slice, nullptr, t[2], cap)};
          },
          capped, {normal({9, 20}, 1), normal({37, 20}, 2) * 0.3, normal({37}, 3)}, type, 37 + 9 + 20,
          type == at::kBFloat16 ? 2 : 0);
  const auto hidden = normal({9, 20}, 1), weight = normal({37, 20}, 2);  // these require no gradients
  expect_close(linear_cross_entropy(hidden, weight, labels, {}, nullptr, 4, nullptr, {}, cap),
               cross_entropy(soft_capped(hidden.matmul(weight.t()), cap), labels), at::kDouble, 66, "loss alone");
  EXPECT_THROW(linear_cross_entropy(hidden, weight, labels, {}, nullptr, 4, nullptr, {}, -1), Error);
}

TEST(LinearCrossEntropy, IgnoresPaddingRows) {
  const auto labels = labels_of(8, 10, true);
  const auto hidden = normal({8, 6}, 1), weight = normal({13, 6}, 2);
  const auto capped = values_and_gradients(
      [&](const Tensors& t) {
        return Tensors{linear_cross_entropy(t[0], t[1], labels, {0, 10}, nullptr, 3, nullptr, {}, 2)};
      },
      {hidden, weight}, at::kDouble);
  EXPECT_EQ(capped[2].slice(0, 10).abs().max().item<double>(), 0);
  const auto padded =
      values_and_gradients([&](const Tensors& t) { return Tensors{linear_cross_entropy(t[0], t[1], labels, {0, 10})}; },
                           {hidden, weight}, at::kDouble);
  const auto expected = values_and_gradients(dense(labels), {hidden, weight.slice(0, 0, 10)}, at::kDouble);
  expect_close(padded[0], expected[0], at::kDouble, 10, "loss");
  expect_close(padded[1], expected[1], at::kDouble, 10, "hidden gradient");
  expect_close(padded[2].slice(0, 0, 10), expected[2], at::kDouble, 10, "weight gradient");
  EXPECT_EQ(padded[2].slice(0, 10).abs().max().item<double>(), 0);
}

// Stands in for the other ranks of a split vocabulary. Their contributions are computed beforehand from the dense
// logits.
struct OtherRanks : RankReduction {
  at::Tensor logits, labels;  // logits of the words of all other ranks; labels relative to these words
  int64_t slice, calls = 0, done = 0;
  at::Tensor largest;
  void max(at::Tensor& mine) override {
    largest = mine.copy_(at::maximum(mine, logits.narrow(0, done, mine.size(0)).amax(1))).clone();
    ++calls;
  }
  void sum(at::Tensor& sums) override {
    const auto part = logits.narrow(0, done, sums.size(1)) - largest.unsqueeze(1);
    const auto own = labels.narrow(0, done, sums.size(1));
    const auto theirs = own.ge(0).logical_and(own.lt(logits.size(1)));
    const auto target = part.gather(1, own.clamp(0, logits.size(1) - 1).unsqueeze(1)).squeeze(1);
    const auto counted = own.gt(kIgnoredLabel);
    sums[0].add_(part.exp().sum(1) * counted);
    sums[1].add_(target * theirs);
    done += sums.size(1);
    ++calls;
  }
};

TEST(LinearCrossEntropy, EqualsTheWholeVocabularyWhenSplit) {
  const int64_t tokens = 11, words = 14, first = 5, mine = 4, slice = 4;
  const auto hidden = normal({tokens, 6}, 1), weight = normal({words, 6}, 2), labels = labels_of(tokens, words, false);
  const auto expected = values_and_gradients(dense(labels), {hidden, weight}, at::kDouble);
  for (const auto set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    OtherRanks others;
    const auto rest = at::cat({weight.slice(0, 0, first), weight.slice(0, first + mine)});
    others.logits = at::mm(hidden, rest.t());
    others.labels = at::where(labels < first, labels, at::where(labels >= first + mine, labels - mine, -1));
    others.slice = slice;
    // The shard has two rows of padding.
    const auto shard = at::cat({weight.slice(0, first, first + mine), at::zeros({2, 6}, at::kDouble)});
    const auto got = values_and_gradients(
        [&](const Tensors& t) {
          return Tensors{linear_cross_entropy(t[0], t[1], labels, {first, mine}, &others, slice)};
        },
        {hidden, shard}, at::kDouble);
    EXPECT_EQ(others.calls, 2 * 3);  // two reductions for each of three slices
    expect_close(got[0], expected[0], at::kDouble, words, "loss");
    expect_close(got[2].slice(0, 0, mine), expected[2].slice(0, first, first + mine), at::kDouble, tokens,
                 "weight gradient");
    // The hidden gradient of this rank is the contribution of its words to (softmax - one-hot) W.
    const auto probabilities = at::mm(hidden, weight.t()).softmax(1);
    const auto difference = (probabilities - at::one_hot(labels, words)).slice(1, first, first + mine);
    const auto seed = normal({}, 1000, at::kDouble);
    expect_close(got[1], at::mm(difference, weight.slice(0, first, first + mine)) * seed, at::kDouble, words,
                 "hidden part");
  }
}

TEST(LinearCrossEntropy, SupportsRanksWithoutWords) {
  RankReduction nobody;
  const auto hidden = normal({3, 4}, 1).requires_grad_(true), weight = normal({2, 4}, 2).requires_grad_(true);
  struct Known : RankReduction {
    void max(at::Tensor& x) override { x.zero_(); }
    void sum(at::Tensor& x) override { x[0].fill_(1), x[1].fill_(-2); }
  } others;
  const auto loss = linear_cross_entropy(hidden, weight, labels_of(3, 9, false), {9, 0}, &others);
  EXPECT_EQ(loss.item<double>(), 6);
  loss.backward();
  EXPECT_EQ(hidden.grad().abs().max().item<double>(), 0);
  EXPECT_EQ(weight.grad().abs().max().item<double>(), 0);
}

TEST(LinearCrossEntropy, SkipsIgnoredTokens) {
  const auto hidden = normal({4, 3}, 1).requires_grad_(true), weight = normal({5, 3}, 2).requires_grad_(true);
  const auto loss = linear_cross_entropy(hidden, weight, at::full({4}, kIgnoredLabel, at::kLong));
  EXPECT_EQ(loss.item<double>(), 0);
  loss.backward();
  EXPECT_EQ(hidden.grad().abs().max().item<double>(), 0);
  EXPECT_EQ(weight.grad().abs().max().item<double>(), 0);
}

TEST(LinearCrossEntropy, ComputesOnlyRequestedGradients) {
  const auto hidden = normal({4, 3}, 1), weight = normal({5, 3}, 2), labels = labels_of(4, 5, false);
  const auto leaf = weight.clone().requires_grad_(true);
  const auto loss = linear_cross_entropy(hidden, leaf, labels);
  loss.backward();
  EXPECT_TRUE(leaf.grad().defined());
  at::NoGradGuard no_grad;
  const auto plain = linear_cross_entropy(hidden, leaf, labels);
  EXPECT_FALSE(plain.requires_grad());
  EXPECT_EQ(plain.item<double>(), loss.item<double>());
}

TEST(LinearCrossEntropy, SupportsNoTokensAndSingleGradients) {
  for (const auto type : float_types())
    for (const int64_t tokens : {0, 5})
      for (const auto& [of_hidden, of_weight] :
           std::vector<std::pair<bool, bool>>{{true, false}, {false, true}, {true, true}}) {
        const auto run = [&](const Operator& loss, at::ScalarType dtype) {
          const Tensors t{normal({tokens, 3}, 1, type).to(dtype).requires_grad_(of_hidden),
                          normal({7, 3}, 2, type).to(dtype).requires_grad_(of_weight)};
          for (int pass = 0; pass < 2; ++pass) loss(t)[0].backward();
          return Tensors{t[0].grad(), t[1].grad()};
        };
        const auto labels = labels_of(tokens, 7, false);
        const auto got = run(
            [&](const Tensors& t) { return Tensors{linear_cross_entropy(t[0], t[1], labels, {}, nullptr, 2)}; }, type);
        const auto want = run(dense(labels), at::kDouble);
        for (int i = 0; i < 2; ++i) {
          expect_close(got[i], want[i], type, 7 + tokens,
                       concat(at::toString(type), ", ", tokens, " tokens, gradient ", i), type == at::kDouble ? 0 : 4);
          if (got[i].defined()) EXPECT_EQ(got[i].scalar_type(), type);
        }
      }
}

/// Gradients of factor * loss, after `repeats` passes one after the other, and the same in fp64.
struct Gradients {
  Tensors got, want;
};

Gradients gradients_of(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels, double factor,
                       int64_t slice, int repeats, at::ScalarType type) {
  const auto run = [&](const Operator& loss, at::ScalarType dtype) {
    Tensors leaves;
    for (const auto& t : {hidden, weight}) leaves.push_back(t.to(dtype, false, true).requires_grad_(true));
    for (int i = 0; i < repeats; ++i) (loss(leaves)[0] * factor).backward();
    return Tensors{leaves[0].grad(), leaves[1].grad()};
  };
  return {run([&](const Tensors& t) { return Tensors{linear_cross_entropy(t[0], t[1], labels, {}, nullptr, slice)}; },
              type),
          run(dense(labels), at::kDouble)};
}

// All tokens are the same, so no slice's gradient compensates another's. A sum that stagnates or overflows is then
// visible.
TEST(LinearCrossEntropy, KeepsEveryTokenForEveryDtype) {
  constexpr int64_t kTokens = 131072, kHidden = 8, kWords = 16;
  // Equal terms are all rounded in the same direction. MKL adds them one by one to the existing sum, so the error is
  // kTokens / 2 roundings and not 4 times its root.
  constexpr int64_t kOneByOne = kTokens * kTokens / 64;
  const auto labels = at::full({kTokens}, 3, at::kLong);
  for (const auto type : float_types()) {
    const auto weight = normal({kWords, kHidden}, 2, type) * 0.125,
               hidden = normal({1, kHidden}, 1, type).expand({kTokens, kHidden}).contiguous();
    for (const int repeats : {1, 2}) {  // the second pass adds to accumulated gradients
      const auto [got, want] = gradients_of(hidden, weight, labels, 1.0 / kTokens, 512, repeats, type);
      // A CPU that multiplies bf16 rounds logits (softmax amplifies that by twice their size), d(logits) and each
      // slice's product. A second pass rounds again.
      const double logits = at::mm(hidden.narrow(0, 0, 1), weight.t()).abs().max().item<double>();
      const double intermediates = (type == at::kBFloat16 ? 2 * logits + 2 : 0) + repeats - 1;
      if (repeats == 1) expect_close(got[0], want[0], type, kWords, "hidden gradient", intermediates);
      expect_close(got[1], want[1], type, kOneByOne, "weight gradient", intermediates);
    }
  }
}

// Backward's factor contains the loss scale. Values that fp16 cannot represent without it must still be there.
TEST(LinearCrossEntropy, KeepsSmallGradientsUntilTheLossScale) {
  const int64_t tokens = 64, words = 16;
  const auto labels = at::full({tokens}, 3, at::kLong);
  auto weight = normal({words, 8}, 2, at::kHalf) * 0.0625;
  weight[3].add_(2.25);  // the label's logit is 18 above the others, so their softmax is about 1e-8
  const auto hidden = at::ones({tokens, 8}, at::kDouble);
  const auto [got, want] = gradients_of(hidden, weight.to(at::kHalf).to(at::kDouble), labels, 0x1p16, 16, 1, at::kHalf);
  // Compares the other words only, because the label's gradient is a difference from 1 that fp32 cannot represent
  // either. A logit of 18 is rounded in fp32, and the exponential makes that error relative.
  const auto others = [](const at::Tensor& gradient) {
    return at::cat({gradient.slice(0, 0, 3), gradient.slice(0, 4)});
  };
  expect_close(others(got[1]), others(want[1]), at::kHalf, 18 * 18, "weight gradient");
  EXPECT_GT(others(want[1]).abs().max().item<double>(), 0x1p-11);
}

TEST(LinearCrossEntropy, RefusesASecondBackward) {
  const auto hidden = normal({4, 3}, 1).requires_grad_(true);
  const auto loss = linear_cross_entropy(hidden, normal({5, 3}, 2), labels_of(4, 5, false));
  loss.backward({}, true);
  EXPECT_THROW(loss.backward(), Error);
}

TEST(LinearCrossEntropy, RefusesMismatchedInputs) {
  const auto hidden = normal({4, 3}, 1), weight = normal({5, 3}, 2), labels = labels_of(4, 5, false);
  EXPECT_THROW(linear_cross_entropy(hidden, normal({5, 4}, 2), labels), Error);
  EXPECT_THROW(linear_cross_entropy(hidden, weight, labels.slice(0, 1)), Error);
  EXPECT_THROW(linear_cross_entropy(hidden, weight, labels + 1), Error);      // 5 is not in a vocabulary of 5
  EXPECT_THROW(linear_cross_entropy(hidden, weight, labels - 4), Error);      // negative, but not -100
  EXPECT_THROW(linear_cross_entropy(hidden, weight, labels, {0, 6}), Error);  // more words than rows
}

}  // namespace
}  // namespace colossal::ops::cross_entropy_test
