#include "colossal/plan/choice_problem.h"

#include <cstddef>
#include <numeric>

namespace colossal::plan {
namespace {

size_t cell_of(const ChoiceProblem& problem, const Pair& pair, const std::vector<int>& choices) {
  return choices[pair.first] * problem.variables[pair.second].cost.size() + choices[pair.second];
}

}  // namespace

double ChoiceProblem::cost_of(const std::vector<int>& choices) const {
  double cost = 0;
  for (size_t i = 0; i < variables.size(); ++i) cost += variables[i].cost[choices[i]];
  for (const Pair& pair : pairs) cost += pair.count() * pair.cost[cell_of(*this, pair, choices)];
  return cost;
}

std::vector<int64_t> ChoiceProblem::live_of(const std::vector<int>& choices) const {
  std::vector<int64_t> live(moments + 1, 0);
  const auto add = [&](Interval interval, int64_t bytes) {
    live[interval.first] += bytes;
    live[interval.last + 1] -= bytes;
  };
  for (size_t i = 0; i < variables.size(); ++i)
    for (const LiveBytes& memory : variables[i].live) add(memory.interval, memory.bytes[choices[i]]);
  for (const Pair& pair : pairs) {
    const int64_t bytes = pair.bytes.empty() ? 0 : pair.bytes[cell_of(*this, pair, choices)];
    if (bytes == 0) continue;
    add(pair.interval, bytes);
    for (const Interval interval : pair.repeats) add(interval, bytes);
  }
  for (int moment = 1; moment <= moments; ++moment) live[moment] += live[moment - 1];
  live.pop_back();
  return live;
}

AllowedChoices all_choices(const ChoiceProblem& problem) {
  AllowedChoices all;
  for (const Variable& variable : problem.variables) {
    all.emplace_back(variable.cost.size());
    std::iota(all.back().begin(), all.back().end(), 0);
  }
  return all;
}

}  // namespace colossal::plan
