// Answers with log-probabilities whose losses are known.
#pragma once
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace colossal::run {

/// Matches golden values, which are given to 12 digits.
inline testing::Matcher<double> digits(double want) { return testing::DoubleNear(want, 1e-11 * std::abs(want)); }

inline std::vector<double> values(const at::Tensor& x) {
  const at::Tensor flat = x.detach().to(at::kDouble).contiguous().flatten();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

/// Four answers of 6, 4, 5 and 3 tokens, with their log-probabilities and those of a reference. Rows 0 and 1 are
/// chosen, rows 2 and 3 rejected.
struct Answers {
  static constexpr int64_t kRows = 4, kTokens = 6, kWords = 7;

  Answers() {
    const at::Tensor b = at::arange(kRows, at::kDouble).view({kRows, 1}), t = at::arange(kTokens, at::kDouble);
    const at::Tensor j = kTokens * b + t;
    const at::Tensor k = j.unsqueeze(2) * kWords + at::arange(kWords, at::kDouble);
    const at::Tensor words = at::remainder(3 * b + 2 * t + b * t, kWords).to(at::kLong);
    lp = at::log_softmax(2 * at::sin(0.3 * k + 0.1), 2).gather(2, words.unsqueeze(2)).squeeze(2);
    reference = lp + 0.2 * at::sin(0.5 * j + 0.3);
    lengths = at::tensor({6, 4, 5, 3}, at::kLong);
    counts = t.unsqueeze(0) < lengths.unsqueeze(1);
  }
  at::Tensor sums(const at::Tensor& of) const { return at::where(counts, of, 0).sum(1); }
  at::Tensor lp, reference, lengths, counts;
};

}  // namespace colossal::run
