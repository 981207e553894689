// The costs of a ChoiceProblem at given prices of memory, one table for each pair of variables, and the choices that
// may still be the cheapest.
//
//   plan::PricedCosts costs(problem, prices, {});
//   costs.prune();
//   costs.alive(0);      // choices of variable 0 that no other choice beats
#pragma once
#include <cstddef>
#include <vector>

#include "colossal/plan/choice_problem.h"

namespace colossal::plan {

/// The prices of a byte over intervals of moments.
class PriceSums {
 public:
  /// `prices` has the price at each moment; empty = all are 0.
  explicit PriceSums(const std::vector<double>& prices);
  double of(Interval interval) const {
    return sums_.size() == 1
               ? 0
               : sums_[static_cast<size_t>(interval.last) + 1] - sums_[static_cast<size_t>(interval.first)];
  }

 private:
  std::vector<double> sums_;  // up to each moment
};

/// Costs with the price of memory. Tables are over the choices that are alive, in ascending order.
class PricedCosts {
 public:
  /// `prices` has the cost of a byte at each moment; empty = memory is free. `allowed` has for each variable the
  /// choices that are alive at first, in ascending order; empty = all choices are.
  PricedCosts(const ChoiceProblem& problem, const std::vector<double>& prices, const AllowedChoices& allowed);

  /// Leaves out choices that cannot be cheaper than another choice of the same variable, whatever the other variables
  /// choose (Goldstein's dead-end elimination). The least cost of the problem stays the same.
  /// Cost: for each variable with K choices O(K * kRivals * entries of a row of its tables), in a few rounds.
  void prune();

  const std::vector<int>& alive(int variable) const { return alive_[static_cast<size_t>(variable)]; }
  /// A choice that prune() left out: every combination with it costs at least `more` more than one with the rival.
  struct Beaten {
    int choice = 0, rival = 0;
    double more = 0;
  };
  /// Returns the choices of a variable that prune() left out, in this order. A rival may be left out later itself.
  const std::vector<Beaten>& beaten(int variable) const { return beaten_[static_cast<size_t>(variable)]; }
  /// Returns the costs of a variable's choices that are alive.
  std::vector<double> own(int variable) const;

  size_t edges() const { return edges_.size(); }
  int first(size_t edge) const { return edges_[edge].first; }  ///< the smaller of the two variables
  int second(size_t edge) const { return edges_[edge].second; }
  /// Returns the costs of pairs of choices that are alive, as a table [choice of first][choice of second].
  std::vector<double> between(size_t edge) const;

  /// Returns the number of table entries that were computed or compared.
  double entries() const { return entries_; }

 private:
  static constexpr size_t kRivals = 8;
  struct Edge {
    int first, second;
    std::vector<double> cost;        // [choice of first][choice of second]
    std::vector<double> transposed;  // [choice of second][choice of first]
  };
  void add_own();
  void add_edges();
  bool prune_variable(size_t variable);
  double disadvantage(size_t variable, int choice, int rival) const;
  double advantage(const Edge& edge, size_t variable, int choice, int rival) const;
  size_t choices(int variable) const { return problem_.variables[static_cast<size_t>(variable)].cost.size(); }

  const ChoiceProblem& problem_;
  PriceSums prices_;
  std::vector<std::vector<int>> alive_;
  std::vector<std::vector<Beaten>> beaten_;
  std::vector<std::vector<double>> own_;
  std::vector<Edge> edges_;
  std::vector<std::vector<size_t>> edges_of_;
  double entries_ = 0;
};

}  // namespace colossal::plan
