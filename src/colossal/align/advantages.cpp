#include "colossal/align/advantages.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"

namespace colossal::align {
namespace {

/// Reads a tensor [B, T] of the host in fp64, and `counts`.
class TokenValues {
 public:
  TokenValues(const char* name, const at::Tensor& x, const at::Tensor& counts) {
    require(x.dim() == 2 && x.sizes() == counts.sizes(), "alignment", name, " must be [B, T] as counts: got ",
            x.sizes(), " and ", counts.sizes());
    require(x.is_cpu() && counts.is_cpu(), "alignment", name, " and counts must be on the host: got ", x.device(),
            " and ", counts.device());
    x_ = x.detach().to(at::kDouble).contiguous();
    counts_ = counts.to(at::kBool).contiguous();
  }
  int64_t rows() const { return x_.size(0); }
  int64_t tokens() const { return x_.size(1); }
  double at(int64_t row, int64_t token) const { return x_.const_data_ptr<double>()[row * tokens() + token]; }
  bool counts(int64_t row, int64_t token) const { return counts_.const_data_ptr<bool>()[row * tokens() + token]; }
  /// Returns the index of the last counted token of a row; -1 = none.
  int64_t last(int64_t row) const {
    int64_t token = tokens() - 1;
    while (token >= 0 && !counts(row, token)) --token;
    return token;
  }
  /// Calls f(row, token, value) for each counted token, rows in order and tokens of a row from the last to the first.
  template <class F>
  void backwards(const F& f) const {
    for (int64_t row = 0; row < rows(); ++row)
      for (int64_t token = last(row); token >= 0; --token)
        if (counts(row, token)) f(row, token, at(row, token));
  }

 private:
  at::Tensor x_, counts_;
};

/// A new tensor [B, T] of zeros.
class TokenResults {
 public:
  explicit TokenResults(const TokenValues& like)
      : x_(at::zeros({like.rows(), like.tokens()}, at::kDouble)), data_(x_.mutable_data_ptr<double>()) {}
  double& at(int64_t row, int64_t token) { return data_[row * x_.size(1) + token]; }
  const at::Tensor& tensor() const { return x_; }

 private:
  at::Tensor x_;
  double* data_;
};

void check_scores(std::span<const OptionalScore> scores, int64_t rows) {
  require(static_cast<int64_t>(scores.size()) == rows, "alignment", "each row must have a score or none: got ",
          scores.size(), " scores and ", rows, " rows");
}

/// The scores of a group that exist.
struct GroupScores {
  explicit GroupScores(std::span<const OptionalScore> group) {
    for (const OptionalScore& score : group)
      if (score) sum += *score, ++count;
    for (const OptionalScore& score : group)
      if (score) squares += (*score - mean()) * (*score - mean());
  }
  double mean() const { return sum / count; }
  double spread() const { return std::sqrt(squares / (count - 1)); }
  double sum = 0, squares = 0, count = 0;
};

}  // namespace

at::Tensor token_rewards(std::span<const OptionalScore> scores, const at::Tensor& kl, const at::Tensor& counts,
                         double beta) {
  const TokenValues of("kl", kl, counts);
  check_scores(scores, of.rows());
  TokenResults rewards(of);
  of.backwards([&](int64_t row, int64_t token, double x) { rewards.at(row, token) = -beta * x; });
  for (int64_t row = 0; row < of.rows(); ++row) {
    const int64_t last = of.last(row);
    if (last < 0) continue;
    const OptionalScore& score = scores[static_cast<size_t>(row)];
    require(score.has_value(), "alignment", "an answer whose tokens count must have a score: got none in row ", row,
            "; leave its tokens out of counts");
    rewards.at(row, last) += *score;
  }
  return rewards.tensor();
}

std::vector<OptionalScore> penalized_scores(std::span<const OptionalScore> scores, const at::Tensor& kl,
                                            const at::Tensor& counts, double beta) {
  const TokenValues of("kl", kl, counts);
  check_scores(scores, of.rows());
  std::vector<double> sums(scores.size());
  of.backwards([&](int64_t row, int64_t, double x) { sums[static_cast<size_t>(row)] += x; });
  std::vector<OptionalScore> penalized(scores.begin(), scores.end());
  for (size_t row = 0; row < penalized.size(); ++row)
    if (penalized[row]) *penalized[row] -= beta * sums[row];
  return penalized;
}

TokenAdvantages token_advantages(const at::Tensor& rewards, const at::Tensor& values, const at::Tensor& counts,
                                 const AdvantageOptions& options) {
  const TokenValues r("rewards", rewards, counts), v("values", values, counts);
  TokenResults advantages(r), returns(r);
  int64_t current = -1;
  double next_value = 0, next_advantage = 0;
  r.backwards([&](int64_t row, int64_t token, double reward) {
    if (row != current) next_value = next_advantage = 0;
    current = row;
    const double value = v.at(row, token), delta = reward + options.gamma * next_value - value;
    next_value = value;
    next_advantage = delta + options.gamma * options.lambda * next_advantage;
    advantages.at(row, token) = next_advantage;
    returns.at(row, token) = next_advantage + value;
  });
  return {advantages.tensor(), returns.tensor()};
}

at::Tensor token_returns(const at::Tensor& rewards, const at::Tensor& counts, double gamma) {
  return token_advantages(rewards, at::zeros_like(rewards), counts, {.gamma = gamma, .lambda = 1}).returns;
}

at::Tensor whitening_sums(const at::Tensor& values, const at::Tensor& counts) {
  double count = 0, sum = 0, squares = 0;
  TokenValues("values", values, counts).backwards([&](int64_t, int64_t, double x) {
    ++count;
    sum += x;
    squares += x * x;
  });
  return at::tensor({count, sum, squares}, at::kDouble);
}

at::Tensor whitened(const at::Tensor& values, const at::Tensor& counts, const at::Tensor& sums) {
  require(sums.is_cpu() && sums.scalar_type() == at::kDouble && sums.numel() == 3, "alignment",
          "sums must be the three numbers of whitening_sums(), summed over ranks: got ", sums.sizes());
  const double *all = sums.const_data_ptr<double>(), count = all[0];
  const double mean = count > 0 ? all[1] / count : 0;
  // Rounding can make the difference negative if all values are nearly equal.
  const double variance = count > 1 ? std::max(0.0, (all[2] - count * mean * mean) / (count - 1)) : 0;
  const double scale = 1 / std::sqrt(variance + 1e-8);
  const TokenValues of("values", values, counts);
  TokenResults results(of);
  of.backwards([&](int64_t row, int64_t token, double x) { results.at(row, token) = (x - mean) * scale; });
  return results.tensor();
}

bool has_spread(std::span<const OptionalScore> group) {
  const auto first =
      std::find_if(group.begin(), group.end(), [](const OptionalScore& score) { return score.has_value(); });
  return std::any_of(first, group.end(), [&](const OptionalScore& score) { return score && *score != **first; });
}

std::vector<double> group_advantages(std::span<const OptionalScore> scores, int64_t answers, GroupAdvantage kind) {
  require(answers > 0 && static_cast<int64_t>(scores.size()) % answers == 0, "alignment",
          "scores must be whole groups of ", answers, " answers: got ", scores.size());
  const auto size = static_cast<size_t>(answers);
  std::vector<double> advantages(scores.size());
  for (size_t begin = 0; begin < scores.size(); begin += size) {
    const std::span<const OptionalScore> group = scores.subspan(begin, size);
    // The mean of equal scores may differ from them by rounding, which a division by the spread would enlarge.
    if (!has_spread(group)) continue;
    const GroupScores of(group);
    const double factor = kind == GroupAdvantage::Spread        ? 1 / (of.spread() + 1e-4)
                          : kind == GroupAdvantage::LeaveOneOut ? of.count / (of.count - 1)
                                                                : 1;
    for (size_t i = 0; i < size; ++i)
      if (group[i]) advantages[begin + i] = (*group[i] - of.mean()) * factor;
  }
  return advantages;
}

double overlong_penalty(int64_t tokens, int64_t max_tokens, int64_t overlong) {
  if (overlong == 0) return 0;
  const auto left = static_cast<double>(max_tokens - overlong - tokens);
  return std::clamp(left / static_cast<double>(overlong), -1.0, 0.0);
}

double adapted_kl_weight(double beta, double kl, double target, int64_t answers, double horizon) {
  const double error = std::clamp(kl / target - 1, -0.2, 0.2);
  return beta * (1 + error * static_cast<double>(answers) / horizon);
}

}  // namespace colossal::align
