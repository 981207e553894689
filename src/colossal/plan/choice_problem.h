// Choices with costs, between which pairs have costs too, and memory that is alive for a time: the problem that a plan
// is the solution of, without graphs or specs.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

namespace colossal::plan {

/// The cost of two choices that cannot be taken together.
inline constexpr double kForbidden = std::numeric_limits<double>::infinity();

/// For each variable the choices that it may take, in ascending order.
using AllowedChoices = std::vector<std::vector<int>>;

/// Memory that is alive at the moments first .. last.
struct Interval {
  int first = 0, last = 0;
};

/// Memory whose size depends on the choice of one variable.
struct LiveBytes {
  Interval interval;
  std::vector<int64_t> bytes;  ///< for each choice
};

/// One variable: a choice among cost.size() ones.
struct Variable {
  std::vector<double> cost;
  std::vector<LiveBytes> live;
};

/// Costs and memory of pairs of choices of two different variables, as tables [choice of first][choice of second].
struct Pair {
  int first = 0, second = 0;
  std::vector<double> cost;
  std::vector<int64_t> bytes;  ///< empty = no memory
  Interval interval;           ///< moments at which `bytes` are alive
  /// Further pairs of the same variables with the same tables: each counts cost and bytes again, alive at its moments.
  std::vector<Interval> repeats{};

  /// Returns how often the costs count.
  double count() const { return static_cast<double>(1 + repeats.size()); }
};

/// The sum of all costs is to be as small as possible while at no moment more than a limit of bytes is alive.
struct ChoiceProblem {
  int moments = 1;
  std::vector<Variable> variables;
  std::vector<Pair> pairs;

  double cost_of(const std::vector<int>& choices) const;
  /// Returns the bytes that are alive at each moment.
  std::vector<int64_t> live_of(const std::vector<int>& choices) const;
};

/// Returns all choices of all variables.
AllowedChoices all_choices(const ChoiceProblem& problem);

}  // namespace colossal::plan
