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
  int made_by = -1;  // index of the eliminated variable whose least costs these are
};

/// An eliminated variable: its costs for each choice of the variables that they depend on, and the best choice.
struct Remembered {
  int variable;
  std::vector<int> others;
  std::vector<int> best;
  std::vector<double> sum;  // over others and the variable, which changes fastest; kept for bounds
  int parent = -1;          // the eliminated variable to whose costs the least of these were added
};

class Eliminator {
 public:
  Eliminator(const ChoiceProblem& problem, const Prices& prices, const AllowedChoices& allowed, bool with_bounds)
      : problem_(problem), costs_(problem, prices, allowed), with_bounds_(with_bounds) {
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

  Elimination result() {
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
    if (with_bounds_) result.bounds = bounds();
    return result;
  }

  double entries() const { return entries_; }

 private:
  /// Returns Elimination::bounds: sends the costs of all other variables back to each eliminated one.
  std::vector<std::vector<double>> bounds() {
    std::vector<std::vector<double>> least;
    for (const Variable& variable : problem_.variables) least.emplace_back(variable.cost.size(), kForbidden);
    std::vector<std::vector<double>> whole(remembered_.size());  // with the costs of all variables
    for (size_t i = remembered_.size(); i-- > 0;) {
      const Remembered& step = remembered_[i];
      const size_t choices = domain(step.variable);
      whole[i] = step.sum;
      const std::vector<double> rest = rest_of(step, whole);
      std::vector<double>& mine = least[static_cast<size_t>(step.variable)];
      const std::vector<int>& alive = costs_.alive(step.variable);
      for (size_t cell = 0; cell < whole[i].size(); ++cell) {
        whole[i][cell] += rest[cell / choices];
        double& bound = mine[static_cast<size_t>(alive[cell % choices])];
        bound = std::min(bound, whole[i][cell]);
      }
      entries_ += 2 * static_cast<double>(whole[i].size());
      const auto& beaten = costs_.beaten(step.variable);  // a rival was left out later than its choice, or not at all
      for (auto one = beaten.rbegin(); one != beaten.rend(); ++one) mine[one->choice] = mine[one->rival] + one->more;
    }
    return least;
  }

  /// Returns for each choice of the others of a step what all variables cost that were not eliminated before it.
  std::vector<double> rest_of(const Remembered& step, const std::vector<std::vector<double>>& whole) {
    const size_t choices = domain(step.variable), cells = step.best.size();
    std::vector<double> own(cells);
    for (size_t cell = 0; cell < cells; ++cell) own[cell] = step.sum[cell * choices + step.best[cell]];
    std::vector<double> rest(cells, kForbidden);
    if (step.parent < 0) {
      rest.assign(cells, constant_);  // of one cell
    } else {
      const Remembered& parent = remembered_[static_cast<size_t>(step.parent)];
      const std::vector<double>& table = whole[static_cast<size_t>(step.parent)];
      std::vector<int> scope = parent.others;
      scope.push_back(parent.variable);
      for_cells(step.others, scope, table.size(),
                [&](size_t from, size_t cell) { rest[from] = std::min(rest[from], table[cell]); });
      entries_ += static_cast<double>(table.size());
    }
    for (size_t cell = 0; cell < cells; ++cell)
      rest[cell] = own[cell] == kForbidden ? kForbidden : rest[cell] - own[cell];
    return rest;
  }

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
    for (const int at : used) {
      for_cells(all_[at].variables, scope, sum.size(),
                [&](size_t from, size_t cell) { sum[cell] += all_[at].table[from]; });
      if (all_[at].made_by >= 0) remembered_[all_[at].made_by].parent = static_cast<int>(remembered_.size());
    }
    entries_ += static_cast<double>(sum.size()) * static_cast<double>(used.size());
    Remembered memory{variable, others, std::vector<int>(cells, 0), {}};
    Factor made{others, std::vector<double>(cells), static_cast<int>(remembered_.size())};
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
    if (with_bounds_) memory.sum = std::move(sum);
    remembered_.push_back(std::move(memory));
    add(std::move(made));
  }

  /// Calls visit(cell of a table over `variables`, cell of a table over `scope`) for the `cells` cells of the second
  /// table; `scope` has all of the variables.
  template <class Visit>
  void for_cells(const std::vector<int>& variables, const std::vector<int>& scope, size_t cells,
                 const Visit& visit) const {
    std::vector<size_t> strides(scope.size(), 0), counts(scope.size(), 0);
    size_t stride = 1;
    for (size_t i = variables.size(); i-- > 0;) {
      const auto at = std::find(scope.begin(), scope.end(), variables[i]) - scope.begin();
      strides[at] = stride;
      stride *= domain(variables[i]);
    }
    size_t from = 0;
    for (size_t cell = 0; cell < cells; ++cell) {
      visit(from, cell);
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
  const bool with_bounds_;
  std::vector<std::set<int>> neighbours_;
  std::vector<std::set<int>> factors_;
  std::vector<Factor> all_;
  std::vector<Remembered> remembered_;
  double constant_ = 0, entries_ = 0;
};

/// Returns the allowed choice of a variable that costs least by itself and with the best choice of each neighbour.
int promising(const ChoiceProblem& problem, int variable, const std::vector<int>& allowed) {
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
  return *std::min_element(allowed.begin(), allowed.end(), [&](int a, int b) { return cost[a] < cost[b]; });
}

}  // namespace

Elimination eliminate(const ChoiceProblem& problem, const Prices& prices, const AllowedChoices& allowed,
                      const EliminationOptions& options) {
  AllowedChoices held = allowed.empty() ? all_choices(problem) : allowed;
  std::vector<int> hubs;
  double entries = 0;
  const auto run = [&](int& hub) {
    Eliminator eliminator(problem, prices, held, options.with_bounds && hubs.empty());
    hub = eliminator.run(options.max_entries);
    Elimination result = hub < 0 ? eliminator.result() : Elimination{};
    entries += eliminator.entries();
    return result;
  };
  int hub = -1;
  Elimination best = run(hub);
  while (hub >= 0) {
    held[hub] = {promising(problem, hub, held[hub])};
    hubs.push_back(hub);
    best = run(hub);
  }
  const AllowedChoices all = allowed.empty() ? all_choices(problem) : allowed;
  for (const int held_one : hubs) {
    const int before = held[held_one].front();
    int chosen = before;
    for (const int choice : all[held_one]) {
      if (choice == before) continue;
      held[held_one] = {choice};
      Elimination next = run(hub);
      if (hub >= 0 || next.cost >= best.cost) continue;  // another choice may leave larger tables
      best = std::move(next);
      chosen = choice;
    }
    held[held_one] = {chosen};
  }
  best.is_exact = hubs.empty();
  best.entries = entries;
  return best;
}

}  // namespace colossal::plan
