#include "colossal/plan/elimination.h"

#include <algorithm>
#include <set>
#include <utility>

#include "colossal/plan/priced_costs.h"

namespace colossal::plan {
namespace {

/// A cost that depends on a few variables, as a table. The last variable changes fastest.
struct Factor {
  std::vector<int> variables;  // ascending
  std::vector<double> table;
};

/// The best choice of an eliminated variable for each choice of the variables that its costs depend on.
struct Remembered {
  int variable;
  std::vector<int> others;
  std::vector<int> best;
};

class Eliminator {
 public:
  Eliminator(const ChoiceProblem& problem, const Prices& prices, const std::vector<int>& fixed)
      : problem_(problem), costs_(problem, prices, fixed) {
    costs_.prune();
    entries_ = costs_.entries();
    neighbours_.resize(problem.variables.size());
    factors_.resize(problem.variables.size());
    for (int v = 0; v < static_cast<int>(problem.variables.size()); ++v) add({{v}, costs_.own(v)});
    for (size_t edge = 0; edge < costs_.edges(); ++edge)
      add({{costs_.first(edge), costs_.second(edge)}, costs_.between(edge)});
  }

  /// Eliminates all variables. Returns the variable to hold instead if a table would have more than `max_entries`.
  int run(double max_entries) {
    std::set<std::pair<double, int>> queue;
    std::vector<double> sizes(neighbours_.size());
    for (int v = 0; v < static_cast<int>(neighbours_.size()); ++v) queue.insert({sizes[v] = size_of(v), v});
    while (!queue.empty()) {
      const auto [size, variable] = *queue.begin();
      if (size > max_entries) return busiest(queue);
      queue.erase(queue.begin());
      const std::vector<int> others(neighbours_[variable].begin(), neighbours_[variable].end());
      eliminate_one(variable, others);
      for (const int other : others) {
        queue.erase({sizes[other], other});
        queue.insert({sizes[other] = size_of(other), other});
      }
    }
    return -1;
  }

  Elimination result() const {
    Elimination result;
    result.choices.assign(problem_.variables.size(), 0);
    for (auto step = remembered_.rbegin(); step != remembered_.rend(); ++step) {
      size_t cell = 0;
      for (const int other : step->others) cell = cell * domain(other) + result.choices[other];
      result.choices[step->variable] = step->best[cell];
    }
    for (size_t v = 0; v < result.choices.size(); ++v)
      result.choices[v] = costs_.alive(static_cast<int>(v))[result.choices[v]];
    result.cost = constant_;
    result.entries = entries_;
    return result;
  }

 private:
  size_t domain(int variable) const { return costs_.alive(variable).size(); }

  void add(Factor factor) {
    if (factor.variables.empty()) {
      constant_ += factor.table[0];
      return;
    }
    for (const int a : factor.variables)
      for (const int b : factor.variables)
        if (a != b) neighbours_[a].insert(b);
    const int at = static_cast<int>(all_.size());
    for (const int v : factor.variables) factors_[v].insert(at);
    all_.push_back(std::move(factor));
  }

  double size_of(int variable) const {
    auto size = static_cast<double>(domain(variable));
    for (const int other : neighbours_[variable]) size *= static_cast<double>(domain(other));
    return size;
  }

  /// Returns the variable whose choice being held makes most other tables smaller.
  int busiest(const std::set<std::pair<double, int>>& queue) const {
    int best = -1;
    double most = -1;
    for (const auto& [size, variable] : queue) {
      const double weight =
          static_cast<double>(neighbours_[variable].size()) * static_cast<double>(domain(variable) - 1);
      if (weight > most) {
        most = weight;
        best = variable;
      }
    }
    return best;
  }

  void eliminate_one(int variable, const std::vector<int>& others) {
    size_t cells = 1;
    for (const int other : others) cells *= domain(other);
    const size_t choices = domain(variable);
    std::vector<double> sum(cells * choices, 0);
    std::vector<int> scope = others;  // the eliminated variable changes fastest
    scope.push_back(variable);
    const std::vector<int> used(factors_[variable].begin(), factors_[variable].end());
    for (const int at : used) add_factor(all_[at], scope, sum);
    entries_ += static_cast<double>(sum.size()) * static_cast<double>(used.size());
    Remembered memory{variable, others, std::vector<int>(cells, 0)};
    Factor made{others, std::vector<double>(cells)};
    for (size_t cell = 0; cell < cells; ++cell) {
      const auto begin = sum.begin() + static_cast<int64_t>(cell * choices);
      const auto least = std::min_element(begin, begin + static_cast<int64_t>(choices));
      memory.best[cell] = static_cast<int>(least - begin);
      made.table[cell] = *least;
    }
    for (const int at : used) {
      for (const int v : all_[at].variables) factors_[v].erase(at);
      all_[at].table = {};
    }
    for (const int other : others) neighbours_[other].erase(variable);
    neighbours_[variable].clear();
    remembered_.push_back(std::move(memory));
    add(std::move(made));
  }

  /// Adds a factor to a table over `scope`, which has all of its variables.
  void add_factor(const Factor& factor, const std::vector<int>& scope, std::vector<double>& sum) const {
    std::vector<size_t> strides(scope.size(), 0), counts(scope.size(), 0);
    size_t stride = 1;
    for (size_t i = factor.variables.size(); i-- > 0;) {
      const auto at = std::find(scope.begin(), scope.end(), factor.variables[i]) - scope.begin();
      strides[at] = stride;
      stride *= domain(factor.variables[i]);
    }
    size_t from = 0;
    for (size_t cell = 0; cell < sum.size(); ++cell) {
      sum[cell] += factor.table[from];
      for (size_t i = scope.size(); i-- > 0;) {
        from += strides[i];
        if (++counts[i] < domain(scope[i])) break;
        from -= strides[i] * counts[i];
        counts[i] = 0;
      }
    }
  }

  const ChoiceProblem& problem_;
  PricedCosts costs_;
  std::vector<std::set<int>> neighbours_;
  std::vector<std::set<int>> factors_;
  std::vector<Factor> all_;
  std::vector<Remembered> remembered_;
  double constant_ = 0, entries_ = 0;
};

/// Returns the choice of a variable that costs least by itself and with the best choice of each neighbour.
int promising(const ChoiceProblem& problem, int variable) {
  std::vector<double> cost = problem.variables[variable].cost;
  for (const Pair& pair : problem.pairs) {
    if (pair.first != variable && pair.second != variable) continue;
    const size_t columns = problem.variables[pair.second].cost.size();
    const int other = pair.first == variable ? pair.second : pair.first;
    for (size_t k = 0; k < cost.size(); ++k) {
      double least = kForbidden;
      for (size_t l = 0; l < problem.variables[other].cost.size(); ++l)
        least = std::min(least, pair.cost[pair.first == variable ? k * columns + l : l * columns + k]);
      cost[k] += least;
    }
  }
  return static_cast<int>(std::min_element(cost.begin(), cost.end()) - cost.begin());
}

}  // namespace

Elimination eliminate(const ChoiceProblem& problem, const Prices& prices, const std::vector<int>& fixed,
                      double max_entries) {
  std::vector<int> held = fixed.empty() ? std::vector<int>(problem.variables.size(), -1) : fixed;
  std::vector<int> hubs;
  double entries = 0;
  const auto run = [&](int& hub) {
    Eliminator eliminator(problem, prices, held);
    hub = eliminator.run(max_entries);
    Elimination result = hub < 0 ? eliminator.result() : Elimination{};
    entries += result.entries;
    return result;
  };
  int hub = -1;
  Elimination best = run(hub);
  while (hub >= 0) {
    held[hub] = promising(problem, hub);
    hubs.push_back(hub);
    best = run(hub);
  }
  for (const int held_one : hubs) {
    const int before = held[held_one];
    int chosen = before;
    for (int choice = 0; choice < static_cast<int>(problem.variables[held_one].cost.size()); ++choice) {
      if (choice == before) continue;
      held[held_one] = choice;
      Elimination next = run(hub);
      if (hub >= 0 || next.cost >= best.cost) continue;  // another choice may leave larger tables
      best = std::move(next);
      chosen = choice;
    }
    held[held_one] = chosen;
  }
  best.is_exact = hubs.empty();
  best.entries = entries;
  return best;
}

}  // namespace colossal::plan
