#include "colossal/plan/priced_costs.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace colossal::plan {
namespace {

constexpr int kPruneRounds = 6;

}  // namespace

PriceSums::PriceSums(const std::vector<double>& prices) : sums_(prices.size() + 1, 0) {
  std::partial_sum(prices.begin(), prices.end(), sums_.begin() + 1);
}

PricedCosts::PricedCosts(const ChoiceProblem& problem, const std::vector<double>& prices, const AllowedChoices& allowed)
    : problem_(problem),
      prices_(prices),
      alive_(allowed.empty() ? all_choices(problem) : allowed),
      beaten_(problem.variables.size()),
      edges_of_(problem.variables.size()) {
  add_own();
  add_edges();
}

void PricedCosts::add_own() {
  for (const Variable& variable : problem_.variables) {
    own_.push_back(variable.cost);
    for (const LiveBytes& live : variable.live) {
      const double price = prices_.of(live.interval);
      if (price == 0) continue;
      for (size_t k = 0; k < live.bytes.size(); ++k) own_.back()[k] += price * static_cast<double>(live.bytes[k]);
      entries_ += static_cast<double>(live.bytes.size());
    }
  }
}

void PricedCosts::add_edges() {
  std::map<std::pair<int, int>, size_t> known;
  for (const Pair& pair : problem_.pairs) {
    const bool swapped = pair.first > pair.second;
    const auto [low, high] = std::minmax(pair.first, pair.second);
    const auto [found, is_new] = known.emplace(std::pair(low, high), edges_.size());
    if (is_new) {
      edges_of_[static_cast<size_t>(low)].push_back(edges_.size());
      edges_of_[static_cast<size_t>(high)].push_back(edges_.size());
      edges_.push_back({low, high, std::vector<double>(choices(low) * choices(high), 0), {}});
    }
    double price = 0;
    if (!pair.bytes.empty()) {
      price = prices_.of(pair.interval);
      for (const Interval interval : pair.repeats) price += prices_.of(interval);
    }
    const size_t rows = choices(pair.first), columns = choices(pair.second);
    std::vector<double>& table = edges_[found->second].cost;
    for (const int row : alive(pair.first)) {
      for (const int column : alive(pair.second)) {
        const size_t cell = static_cast<size_t>(row) * columns + static_cast<size_t>(column);
        double cost = pair.count() * pair.cost[cell];
        if (price != 0) cost += price * static_cast<double>(pair.bytes[cell]);
        table[swapped ? static_cast<size_t>(column) * rows + static_cast<size_t>(row) : cell] += cost;
      }
    }
    entries_ += static_cast<double>(alive(pair.first).size() * alive(pair.second).size());
  }
  for (Edge& edge : edges_) {
    const size_t rows = choices(edge.first), columns = choices(edge.second);
    edge.transposed.resize(edge.cost.size());
    for (const int one : alive(edge.first))
      for (const int other : alive(edge.second)) {
        const auto row = static_cast<size_t>(one), column = static_cast<size_t>(other);
        edge.transposed[column * rows + row] = edge.cost[row * columns + column];
      }
    entries_ += static_cast<double>(alive(edge.first).size() * alive(edge.second).size());
  }
}

void PricedCosts::prune() {
  for (int round = 0; round < kPruneRounds; ++round) {
    bool changed = false;
    for (size_t v = 0; v < alive_.size(); ++v) changed = prune_variable(v) || changed;
    if (!changed) return;
  }
}

bool PricedCosts::prune_variable(size_t variable) {
  std::vector<int>& alive = alive_[variable];
  if (alive.size() < 2) return false;
  std::vector<std::pair<double, int>> scores;  // the least that each choice can cost: the likely winners come first
  for (const int choice : alive) {
    double score = own_[variable][static_cast<size_t>(choice)];
    for (const size_t at : edges_of_[variable]) {
      const Edge& edge = edges_[at];
      const bool is_first = edge.first == static_cast<int>(variable);
      const int other = is_first ? edge.second : edge.first;
      const double* table = (is_first ? edge.cost : edge.transposed).data();
      const double* row = table + static_cast<size_t>(choice) * choices(other);
      double least = kForbidden;
      for (const int one : alive_[static_cast<size_t>(other)]) least = std::min(least, row[one]);
      entries_ += static_cast<double>(alive_[static_cast<size_t>(other)].size());
      score += least;
    }
    scores.push_back({score, choice});
  }
  std::sort(scores.begin(), scores.end());
  std::vector<int> kept;
  for (const auto& [score, choice] : scores) {
    Beaten result{.choice = choice, .more = -kForbidden};
    if (score == kForbidden && !kept.empty()) result = {choice, kept.front(), kForbidden};
    for (size_t i = 0; i < std::min(kept.size(), kRivals) && result.more < 0; ++i)
      result = {choice, kept[i], disadvantage(variable, choice, kept[i])};
    if (result.more >= 0)
      beaten_[variable].push_back(result);
    else
      kept.push_back(choice);
  }
  std::sort(kept.begin(), kept.end());
  const bool changed = kept.size() < alive.size();
  alive = std::move(kept);
  return changed;
}

/// Returns the least amount by which a choice costs more than a rival, whatever the other variables choose.
double PricedCosts::disadvantage(size_t variable, int choice, int rival) const {
  const double mine = own_[variable][static_cast<size_t>(choice)], other = own_[variable][static_cast<size_t>(rival)];
  if (other == kForbidden) return -kForbidden;
  double sum = mine - other;
  for (const size_t at : edges_of_[variable]) {
    const double least = advantage(edges_[at], variable, choice, rival);
    if (least == -kForbidden) return least;
    sum += least;
  }
  return sum;
}

/// Returns the least amount by which a choice costs more than the rival, over the choices of the other variable of an
/// edge; negative infinity if the rival is forbidden where the choice is not.
double PricedCosts::advantage(const Edge& edge, size_t variable, int choice, int rival) const {
  const bool is_first = edge.first == static_cast<int>(variable);
  const int other = is_first ? edge.second : edge.first;
  const double* table = (is_first ? edge.cost : edge.transposed).data();
  const double *mine = table + static_cast<size_t>(choice) * choices(other),
               *his = table + static_cast<size_t>(rival) * choices(other);
  double least = kForbidden;
  for (const int one : alive_[static_cast<size_t>(other)]) {
    if (mine[one] == kForbidden) continue;
    if (his[one] == kForbidden) return -kForbidden;
    least = std::min(least, mine[one] - his[one]);
  }
  return least;
}

std::vector<double> PricedCosts::own(int variable) const {
  std::vector<double> costs;
  for (const int choice : alive(variable)) costs.push_back(own_[static_cast<size_t>(variable)][choice]);
  return costs;
}

std::vector<double> PricedCosts::between(size_t edge) const {
  std::vector<double> costs;
  const size_t columns = choices(second(edge));
  for (const int row : alive(first(edge)))
    for (const int column : alive(second(edge)))
      costs.push_back(edges_[edge].cost[static_cast<size_t>(row) * columns + static_cast<size_t>(column)]);
  return costs;
}

}  // namespace colossal::plan
