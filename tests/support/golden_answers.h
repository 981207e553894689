// Four answers of a model with seven words, whose losses and advantages are known to 12 digits.
#pragma once
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>
#include <vector>

namespace colossal::test {

/// Golden values are given to 12 digits, fewer if the last ones are 0.
inline testing::Matcher<double> digits(double want) { return testing::DoubleNear(want, 1e-11 * std::abs(want)); }

/// Returns the elements of a tensor as doubles.
inline std::vector<double> values(const at::Tensor& x) {
  const at::Tensor flat = x.detach().to(at::kDouble).contiguous().flatten();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

/// Answers of 6, 4, 5 and 3 tokens in rows of 6. All tensors but the lengths are [4, 6] in fp64. As pairs, rows 0 and 1
/// are chosen, and rows 2 and 3 rejected.
struct GoldenAnswers {
  static constexpr int64_t kRows = 4, kTokens = 6, kWords = 7;
  GoldenAnswers() {
    const at::Tensor b = at::arange(kRows, at::kDouble).view({kRows, 1}), t = at::arange(kTokens, at::kDouble);
    const at::Tensor j = kTokens * b + t, k = j.unsqueeze(2) * kWords + at::arange(kWords, at::kDouble);
    const at::Tensor words = at::remainder(3 * b + 2 * t + b * t, kWords).to(at::kLong);
    const at::Tensor all = at::log_softmax(2 * at::sin(0.3 * k + 0.1), 2);
    lp = all.gather(2, words.unsqueeze(2)).squeeze(2);
    entropies = -(all * all.exp()).sum(2);
    old = lp + 0.3 * at::cos(0.7 * j);
    reference = lp + 0.2 * at::sin(0.5 * j + 0.3);
    sampled = old + 0.4 * at::sin(1.1 * j + 0.5);
    old_values = 0.5 * at::cos(0.4 * j);
    values = old_values + 0.3 * at::sin(0.9 * j);
    lengths = at::tensor({6, 4, 5, 3}, at::kLong);
    counts = t.unsqueeze(0) < lengths.unsqueeze(1);
  }
  /// Returns the sums over the answers, [4].
  at::Tensor sums(const at::Tensor& of) const { return of.masked_fill(counts.logical_not(), 0).sum(1); }
  /// Returns the mean over the tokens of all answers.
  double mean(const at::Tensor& of) const { return sums(of).sum().item<double>() / 18; }

  at::Tensor lp, entropies, old, reference, sampled, old_values, values, lengths, counts;
};

}  // namespace colossal::test
