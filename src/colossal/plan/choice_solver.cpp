#include "colossal/plan/choice_solver.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "colossal/plan/elimination.h"

namespace colossal::plan {
namespace {

constexpr int kPriceRounds = 8;
constexpr int kBisections = 24;
constexpr double kGap = 1e-9;  // relative: rounding of sums of costs in another order

int fullest(const std::vector<int64_t>& live) {
  return static_cast<int>(std::max_element(live.begin(), live.end()) - live.begin());
}

/// Returns the problem whose only costs are those of choices that cannot be combined.
ChoiceProblem without_costs(ChoiceProblem problem) {
  const auto clear = [](std::vector<double>& costs) {
    for (double& cost : costs)
      if (cost != kForbidden) cost = 0;
  };
  for (Variable& variable : problem.variables) clear(variable.cost);
  for (Pair& pair : problem.pairs) clear(pair.cost);
  return problem;
}

class LimitedSearch {
 public:
  LimitedSearch(const ChoiceProblem& problem, int64_t limit, double max_entries)
      : problem_(problem), limit_(limit), max_entries_(max_entries) {
    fixed_.assign(problem.variables.size(), -1);
  }

  ChoiceSolution run() {
    const Elimination free = visit({});
    if (free.cost == kForbidden) return {.is_proven = free.is_exact};
    solution_.lower_bound = free.cost;
    if (limit_ == 0 || is_fit(free.choices)) {
      solution_.is_proven = free.is_exact;
      return solution_;
    }
    memory_only_ = without_costs(problem_);
    find_prices(problem_.live_of(free.choices));
    if (!is_impossible_) close_gap();
    const bool is_done = is_impossible_ || !is_cut_short_;
    solution_.is_proven = is_exact_ && is_done;
    if (is_exact_ && is_done && solution_.is_feasible) solution_.lower_bound = solution_.cost;
    return solution_;
  }

 private:
  bool is_fit(const std::vector<int>& choices) const {
    const auto live = problem_.live_of(choices);
    return live[fullest(live)] <= limit_;
  }

  /// Eliminates under the present fixed choices, and keeps the choices if they are the best that fit.
  Elimination visit(const Prices& prices) {
    Elimination result = eliminate(problem_, prices, fixed_);
    entries_ += result.entries;
    is_exact_ = is_exact_ && result.is_exact;
    if (result.cost != kForbidden) consider(result.choices);
    return result;
  }

  void consider(const std::vector<int>& choices) {
    const auto live = problem_.live_of(choices);
    const int64_t peak = live[fullest(live)];
    if (solution_.smallest_peak == 0 || peak < solution_.smallest_peak) solution_.smallest_peak = peak;
    if (limit_ > 0 && peak > limit_) return;
    const double cost = problem_.cost_of(choices);
    if (cost >= solution_.cost) return;
    solution_.is_feasible = true;
    solution_.choices = choices;
    solution_.cost = cost;
    solution_.peak = peak;
  }

  /// Returns true if no choices under the fixed ones fit, by the bytes at weighted moments.
  bool is_too_large(const Prices& weights) {
    const Elimination least = eliminate(memory_only_, weights, fixed_);
    entries_ += least.entries;
    if (least.cost == kForbidden) return least.is_exact;
    consider(least.choices);
    return least.is_exact && least.cost > static_cast<double>(limit_) * (1 + kGap);
  }

  double weighted(const std::vector<int>& choices, const Prices& weights) const {
    const auto live = problem_.live_of(choices);
    double sum = 0;
    for (size_t i = 0; i < live.size(); ++i) sum += weights[i] * static_cast<double>(live[i]);
    return sum;
  }

  /// Visits the problem at one price for the weighted moments, and raises the lower bound.
  Elimination visit_at(double price, const Prices& weights) {
    Prices prices = weights;
    for (double& one : prices) one *= price;
    Elimination result = visit(prices);
    const double bound = result.cost - price * static_cast<double>(limit_);
    if (result.is_exact && bound > solution_.lower_bound) {
      solution_.lower_bound = bound;
      prices_ = prices;
    }
    return result;
  }

  bool is_used_up() const { return entries_ > max_entries_; }
  bool is_closed() const { return solution_.cost <= solution_.lower_bound + kGap * std::abs(solution_.lower_bound); }

  void find_prices(std::vector<int64_t> live) {
    std::vector<double> counts(problem_.moments, 0);
    for (int round = 0; round < kPriceRounds && !is_closed() && !is_used_up(); ++round) {
      counts[fullest(live)] += 1;
      weights_ = counts;
      const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
      for (double& weight : weights_) weight /= total;
      if (is_too_large(weights_)) {
        is_impossible_ = true;
        return;
      }
      live = bisect();
      if (live[fullest(live)] <= limit_) return;
    }
  }

  /// Finds the least price at which the weighted bytes fit. Returns what is alive with the choices at that price.
  std::vector<int64_t> bisect() {
    const auto limit = static_cast<double>(limit_);
    double low = 0, high = std::max(solution_.lower_bound, 1e-12) / limit;
    std::vector<int> choices = visit_at(high, weights_).choices;
    for (int i = 0; i < 60 && weighted(choices, weights_) > limit && !is_used_up(); ++i) {
      low = high;
      high *= 4;
      choices = visit_at(high, weights_).choices;
    }
    for (int i = 0; i < kBisections && high - low > 1e-6 * high && !is_closed() && !is_used_up(); ++i) {
      const double middle = (low + high) / 2;
      Elimination result = visit_at(middle, weights_);
      if (weighted(result.choices, weights_) > limit) {
        low = middle;
      } else {
        high = middle;
        choices = std::move(result.choices);
      }
    }
    return problem_.live_of(choices);
  }

  void close_gap() {
    if (is_closed()) return;
    std::vector<std::pair<double, int>> spreads;
    for (size_t i = 0; i < problem_.variables.size(); ++i) {
      if (problem_.variables[i].cost.size() < 2) continue;
      double spread = 0;
      for (const LiveBytes& live : problem_.variables[i].live) {
        const auto [least, most] = std::minmax_element(live.bytes.begin(), live.bytes.end());
        spread += static_cast<double>(*most - *least);
      }
      spreads.push_back({-spread, static_cast<int>(i)});
    }
    std::sort(spreads.begin(), spreads.end());
    for (const auto& [spread, variable] : spreads) order_.push_back(variable);
    branch(0);
  }

  /// Searches all choices of the variables from `depth` of the order on.
  void branch(size_t depth) {
    if (is_used_up()) is_cut_short_ = true;
    if (is_cut_short_) return;
    const Elimination free = visit({});
    if (free.cost >= solution_.cost * (1 - kGap) || is_fit(free.choices)) return;
    double price = 0;
    for (const double one : prices_) price += one;
    if (price > 0) {
      const Elimination priced = visit(prices_);
      if (priced.cost - price * static_cast<double>(limit_) >= solution_.cost * (1 - kGap)) return;
    }
    Prices peak(problem_.moments, 0);
    peak[fullest(problem_.live_of(free.choices))] = 1;
    if (depth == order_.size() || is_too_large(peak)) return;
    const int variable = order_[depth];
    const int first = free.choices[variable];
    const int count = static_cast<int>(problem_.variables[variable].cost.size());
    for (int i = 0; i < count; ++i) {
      fixed_[variable] = i == 0 ? first : i <= first ? i - 1 : i;
      branch(depth + 1);
    }
    fixed_[variable] = -1;
  }

  const ChoiceProblem& problem_;
  const int64_t limit_;
  const double max_entries_;
  ChoiceProblem memory_only_;
  ChoiceSolution solution_;
  Prices weights_, prices_;
  std::vector<int> fixed_, order_;
  double entries_ = 0;
  bool is_exact_ = true, is_impossible_ = false, is_cut_short_ = false;
};

}  // namespace

ChoiceSolution solve_choices(const ChoiceProblem& problem, int64_t limit, double max_entries) {
  return LimitedSearch(problem, limit, max_entries).run();
}

}  // namespace colossal::plan
