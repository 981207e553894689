#include "colossal/plan/choice_solver.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "colossal/plan/elimination.h"
#include "colossal/plan/priced_costs.h"

namespace colossal::plan {
namespace {

constexpr int kPriceRounds = 4;
constexpr double kFirstWindow = 0.005, kLastWindow = 1;  // shares of the bound
constexpr double kFirstLength = 1.5;                     // of Polyak's steps
constexpr int kSteps = 12;                               // of the prices of a node
constexpr double kProgress = 0.02;  // share of the gap that a step must close, or the node is split
constexpr double kGap = 1e-9;       // relative: rounding of sums of costs in another order

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

/// A part of the problem: the choices that are still allowed.
struct Subproblem {
  AllowedChoices allowed;
  Prices prices;     // those of the best bound
  double bound = 0;  // no choices of this part cost less
};

/// Choices on both sides of the limit, which the prices of a node lead to.
struct Sides {
  std::vector<int> inside, outside;  // empty = none seen
  double slack = kForbidden, excess = kForbidden;
  void add(const std::vector<int>& choices, double over) {
    double& least = over > 0 ? excess : slack;
    if (std::abs(over) >= least) return;
    least = std::abs(over);
    (over > 0 ? outside : inside) = choices;
  }
};

class LimitedSearch {
 public:
  LimitedSearch(const ChoiceProblem& problem, int64_t limit, double max_entries)
      : problem_(problem), limit_(limit), max_entries_(max_entries), root_{.allowed = all_choices(problem)} {}

  ChoiceSolution run() {
    const Elimination free = visit(root_, {});
    if (free.cost == kForbidden) return {.is_proven = free.is_exact};
    if (free.is_exact) root_.bound = free.cost;
    solution_.lower_bound = root_.bound;
    if (limit_ == 0 || is_fit(free.choices)) {
      solution_.is_proven = free.is_exact;
      solution_.lower_bound = free.cost;
      return solution_;
    }
    memory_only_ = without_costs(problem_);
    root_.prices.assign(problem_.moments, 0);
    find_prices(free);
    solution_.lower_bound = root_.bound;
    if (!is_impossible_) search_windows();
    solution_.is_proven = is_impossible_ || (open_.empty() && !is_used_up());
    if (solution_.is_feasible)
      solution_.lower_bound = solution_.is_proven ? solution_.cost : std::min(solution_.lower_bound, solution_.cost);
    return solution_;
  }

 private:
  bool is_fit(const std::vector<int>& choices) const {
    const auto live = problem_.live_of(choices);
    return live[fullest(live)] <= limit_;
  }

  /// Eliminates the choices of a node, and keeps the result if it is the best that fits.
  Elimination visit(const Subproblem& node, const Prices& prices, bool with_bounds = false) {
    Elimination result = eliminate(problem_, prices, node.allowed, {.with_bounds = with_bounds});
    entries_ += result.entries;
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

  /// Leaves out the choices that are too large by the bytes at weighted moments. Returns true if no others are left.
  bool is_too_large(Subproblem& node, const Prices& weights) {
    const Elimination least = eliminate(memory_only_, weights, node.allowed, {.with_bounds = true});
    entries_ += least.entries;
    if (least.cost == kForbidden) return least.is_exact;
    consider(least.choices);
    return !keep(node, least.bounds, static_cast<double>(limit_) * (1 + kGap));
  }

  /// Leaves out the choices whose bounds are above `most`. Returns false if a variable has no other.
  static bool keep(Subproblem& node, const std::vector<std::vector<double>>& bounds, double most) {
    for (size_t v = 0; v < bounds.size(); ++v)
      if (std::erase_if(node.allowed[v], [&](int choice) { return bounds[v][choice] > most; }) > 0 &&
          node.allowed[v].empty())
        return false;
    return true;
  }

  double weighted(const std::vector<int>& choices, const Prices& weights) const {
    const auto live = problem_.live_of(choices);
    double sum = 0;
    for (size_t i = 0; i < live.size(); ++i) sum += weights[i] * static_cast<double>(live[i]);
    return sum;
  }

  double limit_at(const Prices& prices) const {
    return std::accumulate(prices.begin(), prices.end(), 0.0) * static_cast<double>(limit_);
  }

  /// The bound of the root as a function of one price for the weighted moments, at one point: it is concave, so no
  /// bound at another price is above the line through the point.
  struct Tangent {
    double price = 0, bound = 0, slope = 0;
    std::vector<int> choices;
  };
  Tangent tangent_at(double price, const Prices& weights) {
    Prices prices = weights;
    for (double& one : prices) one *= price;
    Elimination result = visit(root_, prices);
    const double bound = result.cost - limit_at(prices);
    if (result.is_exact && bound > root_.bound) {
      root_.bound = bound;
      root_.prices = prices;
    }
    const double over = weighted(result.choices, weights) - static_cast<double>(limit_);
    return {price, bound, over, std::move(result.choices)};
  }

  /// Returns the cost of choices that are looked for: less than the best known, and inside the window.
  double wanted() const {
    return solution_.is_feasible ? std::min(solution_.cost - kGap * std::abs(solution_.cost), most_) : most_;
  }
  bool is_used_up() const { return entries_ > max_entries_; }
  bool is_closed(double bound) const { return bound >= wanted(); }

  /// Finds prices for the fullest moments. Sets is_impossible_ if nothing fits.
  void find_prices(const Elimination& free) {
    std::vector<double> counts(problem_.moments, 0);
    std::vector<int64_t> live = problem_.live_of(free.choices);
    for (int round = 0; round < kPriceRounds && !is_used_up(); ++round) {
      const double before = root_.bound;
      counts[fullest(live)] += 1;
      Prices weights = shares_of(counts);
      if (is_too_large(root_, weights)) {
        is_impossible_ = true;
        return;
      }
      live = problem_.live_of(best_price(free, weights).choices);
      if (live[fullest(live)] <= limit_ || root_.bound < before * (1 + kFirstWindow)) return;
    }
  }

  /// Bisects between the prices at which the weighted bytes are too large and at which they fit: the next price is
  /// where the lines through both cross. Returns the point at which they fit.
  Tangent best_price(const Elimination& free, const Prices& weights) {
    Tangent low{0, free.cost, weighted(free.choices, weights) - static_cast<double>(limit_), free.choices};
    Tangent high = tangent_at(std::max(free.cost, 1e-12) / static_cast<double>(limit_), weights);
    for (int i = 0; i < 60 && high.slope > 0 && !is_used_up(); ++i) {
      low = std::move(high);
      high = tangent_at(4 * low.price, weights);
    }
    while (high.slope < 0 && low.slope > 0 && !is_used_up()) {
      const double rise = high.bound - low.bound + low.slope * low.price - high.slope * high.price;
      const double price = rise / (low.slope - high.slope), most = low.bound + low.slope * (price - low.price);
      if (most <= root_.bound * (1 + kFirstWindow / 4)) break;
      Tangent middle = tangent_at(price, weights);
      (middle.slope > 0 ? low : high) = std::move(middle);
    }
    return high;
  }

  /// Searches for choices that cost little more than the bound, in windows that grow until one has such choices.
  /// Most choices of most variables have bounds above a small window, so it is searched quickly.
  void search_windows() {
    const std::vector<std::vector<double>> bounds = visit(root_, root_.prices, true).bounds;
    for (double width = kFirstWindow;; width *= 2) {
      most_ = kForbidden;
      if (is_closed(root_.bound)) return;
      most_ = width > kLastWindow ? kForbidden : root_.bound + width * std::abs(root_.bound);
      Subproblem inside = root_;
      if (keep(inside, bounds, wanted() + limit_at(root_.prices))) branch_and_bound(std::move(inside));
      if (is_used_up() || most_ == kForbidden || solution_.cost <= most_) return;
      root_.bound = most_;  // nothing in the window
    }
  }

  /// Searches the parts of the problem for choices that cost at most `most_`, the part with the least bound first.
  void branch_and_bound(Subproblem root) {
    const auto is_later = [](const Subproblem& a, const Subproblem& b) { return a.bound > b.bound; };
    open_ = {std::move(root)};
    while (!open_.empty()) {
      solution_.lower_bound = std::max(solution_.lower_bound, std::min(open_.front().bound, wanted()));
      if (is_used_up()) return;
      std::pop_heap(open_.begin(), open_.end(), is_later);
      Subproblem node = std::move(open_.back());
      open_.pop_back();
      Sides sides;
      if (is_closed(node.bound) || !raise_bound(node, sides)) continue;
      for (Subproblem& part : parts_of(node, sides)) {
        open_.push_back(std::move(part));
        std::push_heap(open_.begin(), open_.end(), is_later);
      }
    }
  }

  /// Changes the prices of a node along the bytes above the limit (a subgradient step of Polyak's length), and leaves
  /// out choices whose bounds show that they are in no better solution. Returns false if the node has none.
  bool raise_bound(Subproblem& node, Sides& sides) {
    Prices prices = node.prices;
    double length = kFirstLength;
    int slow = 0;
    for (int step = 0; step < kSteps && slow < 2 && !is_used_up(); ++step) {
      const Elimination result = visit(node, prices, true);
      if (result.cost == kForbidden && result.is_exact) return false;
      const double paid = limit_at(prices), bound = result.cost - paid;
      const auto live = problem_.live_of(result.choices);
      sides.add(result.choices, static_cast<double>(live[fullest(live)] - limit_));
      if (result.is_exact) {
        if (is_closed(bound)) return false;
        if (!keep(node, result.bounds, wanted() + paid)) return false;
      }
      if (step > 0 && bound < node.bound + kProgress * (wanted() - node.bound)) ++slow;
      if (bound > node.bound && result.is_exact) {
        node.bound = bound;
        node.prices = prices;
      } else if (step > 0) {
        length /= 2;
      }
      if (!move_prices(prices, live, length * ((wanted() < kForbidden ? wanted() : 2 * bound) - bound))) break;
    }
    return wanted() < kForbidden || !is_too_large(node, shares_of(node.prices));
  }

  /// Raises prices at the fullest moment and lowers those of moments below the limit. Returns false at their best.
  bool move_prices(Prices& prices, const std::vector<int64_t>& live, double gain) const {
    const auto over = [&](size_t i) { return static_cast<double>(live[i] - limit_); };
    std::vector<size_t> moments;
    double squares = 0;
    const auto peak = static_cast<size_t>(fullest(live));
    for (size_t i = 0; i < live.size(); ++i) {
      if (prices[i] == 0 && (i != peak || over(i) <= 0)) continue;
      moments.push_back(i);
      squares += over(i) * over(i);
    }
    if (squares == 0) return false;
    for (const size_t i : moments) prices[i] = std::max(0.0, prices[i] + gain * over(i) / squares);
    return true;
  }

  Prices shares_of(const Prices& prices) const {
    Prices shares = prices;
    const double sum = std::accumulate(prices.begin(), prices.end(), 0.0);
    for (double& share : shares) share = sum > 0 ? share / sum : 1.0 / static_cast<double>(shares.size());
    return shares;
  }

  /// Returns the price of the memory that each choice of a variable has by itself.
  static std::vector<double> paid_for(const Variable& variable, const PriceSums& sums) {
    std::vector<double> paid(variable.cost.size(), 0);
    for (const LiveBytes& live : variable.live) {
      const double price = sums.of(live.interval);
      for (size_t k = 0; k < paid.size(); ++k) paid[k] += price * static_cast<double>(live.bytes[k]);
    }
    return paid;
  }

  /// Splits a node at the variable whose choices on both sides of the limit differ most in the price of memory, or, if
  /// none does, whose choices have the widest range of prices. One part has the choices with lower prices, the other
  /// the rest. Returns no part if every variable has one choice.
  std::vector<Subproblem> parts_of(const Subproblem& node, const Sides& sides) const {
    const bool has_sides = !sides.inside.empty() && !sides.outside.empty();
    const PriceSums sums(node.prices);
    size_t split = 0;
    std::pair<double, double> most{-1, -1};  // difference of the sides, range
    double middle = 0;
    std::vector<double> paid;
    for (size_t v = 0; v < node.allowed.size(); ++v) {
      const std::vector<int>& allowed = node.allowed[v];
      if (allowed.size() < 2) continue;
      std::vector<double> mine = paid_for(problem_.variables[v], sums);
      const auto [least, largest] =
          std::minmax_element(allowed.begin(), allowed.end(), [&](int a, int b) { return mine[a] < mine[b]; });
      const double inside = has_sides ? mine[sides.inside[v]] : 0, outside = has_sides ? mine[sides.outside[v]] : 0;
      const std::pair rank{std::abs(outside - inside), mine[*largest] - mine[*least]};
      if (rank <= most) continue;
      split = v;
      most = rank;
      middle = (rank.first > 0 ? inside + outside : mine[*least] + mine[*largest]) / 2;
      paid = std::move(mine);
    }
    if (most.second < 0) return {};
    std::vector<int> order = node.allowed[split];
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return paid[a] < paid[b]; });
    auto cut = std::find_if(order.begin(), order.end(), [&](int choice) { return paid[choice] > middle; });
    if (cut == order.begin() || cut == order.end()) cut = order.begin() + static_cast<std::ptrdiff_t>(order.size() / 2);
    std::vector<Subproblem> parts(2, node);
    parts[0].allowed[split].assign(order.begin(), cut);
    parts[1].allowed[split].assign(cut, order.end());
    for (Subproblem& part : parts) std::sort(part.allowed[split].begin(), part.allowed[split].end());
    return parts;
  }

  const ChoiceProblem& problem_;
  const int64_t limit_;
  const double max_entries_;
  ChoiceProblem memory_only_;
  ChoiceSolution solution_;
  Subproblem root_;
  std::vector<Subproblem> open_;  // a heap
  double most_ = kForbidden;      // the window: more is not looked for
  double entries_ = 0;
  bool is_impossible_ = false;
};

}  // namespace

ChoiceSolution solve_choices(const ChoiceProblem& problem, int64_t limit, double max_entries) {
  return LimitedSearch(problem, limit, max_entries).run();
}

}  // namespace colossal::plan
