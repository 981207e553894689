// Choices within a memory limit: the solver finds what trying all of them finds.
#include "colossal/plan/choice_solver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "colossal/plan/elimination.h"
#include "colossal/plan/priced_costs.h"

namespace colossal::plan::choice_solver_test {
namespace {

struct Best {
  double cost = kForbidden;
  int64_t smallest_peak = 0;
};

Best try_all(const ChoiceProblem& problem, int64_t limit) {
  Best best{.smallest_peak = INT64_MAX};
  std::vector<int> choices(problem.variables.size(), 0);
  for (;;) {
    const double cost = problem.cost_of(choices);
    const auto live = problem.live_of(choices);
    const int64_t peak = *std::max_element(live.begin(), live.end());
    if (cost != kForbidden) best.smallest_peak = std::min(best.smallest_peak, peak);
    if (limit == 0 || peak <= limit) best.cost = std::min(best.cost, cost);
    size_t i = 0;
    while (i < choices.size() && ++choices[i] == static_cast<int>(problem.variables[i].cost.size())) choices[i++] = 0;
    if (i == choices.size()) return best;
  }
}

ChoiceProblem random_problem(std::mt19937& random) {
  const auto draw = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  ChoiceProblem problem{.moments = draw(1, 6)};
  const auto interval = [&] {
    const int first = draw(0, problem.moments - 1);
    return Interval{first, draw(first, problem.moments - 1)};
  };
  const int count = draw(1, 7);
  for (int i = 0; i < count; ++i) {
    Variable variable;
    const int choices = draw(1, 5 - count / 3);
    for (int k = 0; k < choices; ++k) variable.cost.push_back(draw(0, 20));
    for (int m = draw(0, 2); m > 0; --m) {
      LiveBytes live{interval(), {}};
      for (int k = 0; k < choices; ++k) live.bytes.push_back(draw(1, 30));
      variable.live.push_back(live);
    }
    problem.variables.push_back(variable);
  }
  for (int a = 0; a < count; ++a) {
    for (int b = 0; b < count; ++b) {
      if (a == b || draw(0, 2) > 0) continue;
      Pair pair{.first = a, .second = b, .interval = interval()};
      const size_t cells = problem.variables[a].cost.size() * problem.variables[b].cost.size();
      const bool has_memory = draw(0, 1) == 1;
      for (size_t k = 0; k < cells; ++k) {
        pair.cost.push_back(draw(0, 9) == 0 ? kForbidden : draw(0, 15));
        if (has_memory) pair.bytes.push_back(draw(0, 10));
      }
      for (int again = draw(-2, 2); again > 0; --again) pair.repeats.push_back(interval());
      problem.pairs.push_back(pair);
    }
  }
  return problem;
}

TEST(Eliminate, FindsTheCheapestChoices) {
  std::mt19937 random(1);
  for (int i = 0; i < 400; ++i) {
    const ChoiceProblem problem = random_problem(random);
    const Elimination result = eliminate(problem);
    EXPECT_EQ(result.cost, try_all(problem, 0).cost) << i;
    EXPECT_TRUE(result.is_exact);
    EXPECT_EQ(problem.cost_of(result.choices), result.cost) << i;
  }
}

TEST(PricedCosts, KeepsTheCheapestChoices) {
  std::mt19937 random(6);
  size_t all = 0, kept = 0;
  for (int i = 0; i < 200; ++i) {
    const ChoiceProblem problem = random_problem(random);
    PricedCosts costs(problem, {}, {});
    costs.prune();
    ChoiceProblem alive = problem;
    for (size_t v = 0; v < alive.variables.size(); ++v) {
      const std::vector<int>& choices = costs.alive(static_cast<int>(v));
      all += alive.variables[v].cost.size();
      kept += choices.size();
      for (size_t k = 0; k < alive.variables[v].cost.size(); ++k)
        if (std::find(choices.begin(), choices.end(), static_cast<int>(k)) == choices.end())
          alive.variables[v].cost[k] = kForbidden;
    }
    EXPECT_EQ(try_all(alive, 0).cost, try_all(problem, 0).cost) << i;
  }
  EXPECT_LT(kept, all * 3 / 4) << "it must leave something out, or nothing is tested";
}

TEST(ChoiceProblem, CountsRepeatedPairs) {
  ChoiceProblem once{.moments = 3}, again{.moments = 3};
  for (ChoiceProblem* problem : {&once, &again}) problem->variables = {{{1, 2}, {}}, {{3, 5}, {}}};
  const Pair pair{.first = 0, .second = 1, .cost = {0, 7, 9, 1}, .bytes = {0, 10, 20, 30}, .interval = {0, 1}};
  once.pairs = {pair, pair};
  once.pairs[1].interval = {2, 2};
  again.pairs = {pair};
  again.pairs[0].repeats = {{2, 2}};
  for (const std::vector<int>& choices : {std::vector<int>{0, 1}, {1, 0}, {1, 1}}) {
    EXPECT_EQ(once.cost_of(choices), again.cost_of(choices));
    EXPECT_EQ(once.live_of(choices), again.live_of(choices));
  }
  EXPECT_EQ(solve_choices(once, 25).cost, solve_choices(again, 25).cost);
}

TEST(Eliminate, ChargesPricesAndKeepsAllowedChoices) {
  std::mt19937 random(2);
  for (int i = 0; i < 100; ++i) {
    const ChoiceProblem problem = random_problem(random);
    Prices prices(problem.moments);
    for (double& price : prices) price = std::uniform_int_distribution<int>(0, 2)(random);
    AllowedChoices allowed = all_choices(problem);
    allowed[0] = {allowed[0].back()};
    const Elimination result = eliminate(problem, prices, allowed);
    EXPECT_EQ(result.choices[0], allowed[0].front());
    if (result.cost == kForbidden) continue;
    double cost = problem.cost_of(result.choices);
    const auto live = problem.live_of(result.choices);
    for (int t = 0; t < problem.moments; ++t) cost += prices[t] * static_cast<double>(live[t]);
    EXPECT_DOUBLE_EQ(result.cost, cost);
  }
}

TEST(Eliminate, FindsGoodChoicesWhereTablesWouldBeTooLarge) {
  std::mt19937 random(3);
  int exact = 0;
  for (int i = 0; i < 200; ++i) {
    const ChoiceProblem problem = random_problem(random);
    const Elimination held = eliminate(problem, {}, {}, {.max_entries = 6});
    if (held.cost == kForbidden) continue;
    EXPECT_EQ(problem.cost_of(held.choices), held.cost);
    EXPECT_GE(held.cost, eliminate(problem).cost);
    exact += held.cost == eliminate(problem).cost ? 1 : 0;
  }
  EXPECT_GT(exact, 50);
}

TEST(Eliminate, BoundsTheCostOfEveryChoice) {
  std::mt19937 random(8);
  int exact = 0, choices = 0;
  for (int i = 0; i < 200; ++i) {
    const ChoiceProblem problem = random_problem(random);
    Prices prices(problem.moments);
    for (double& price : prices) price = std::uniform_int_distribution<int>(0, 2)(random);
    const Elimination result = eliminate(problem, prices, {}, {.with_bounds = true});
    const AllowedChoices all = all_choices(problem);
    AllowedChoices one = all;
    for (size_t v = 0; v < problem.variables.size(); ++v) {
      double least = kForbidden;
      for (const int choice : all[v]) {
        one[v] = {choice};
        const double cost = eliminate(problem, prices, one).cost, bound = result.bounds[v][static_cast<size_t>(choice)];
        EXPECT_LE(bound, cost) << i << ", variable " << v << ", choice " << choice;
        least = std::min(least, bound);
        exact += bound == cost ? 1 : 0;
        ++choices;
      }
      EXPECT_EQ(least, result.cost) << i;
      one[v] = all[v];
    }
  }
  EXPECT_GT(exact, choices / 2) << "bounds that are always 0 would pass";
}

TEST(SolveChoices, EqualsTryingAllWithinAnyLimit) {
  std::mt19937 random(4);
  int limited = 0, impossible = 0;
  for (int i = 0; i < 600; ++i) {
    const ChoiceProblem problem = random_problem(random);
    const int64_t limit = std::uniform_int_distribution<int>(1, 120)(random);
    const Best best = try_all(problem, limit);
    const ChoiceSolution solution = solve_choices(problem, limit);
    ASSERT_EQ(solution.is_feasible, best.cost != kForbidden) << i;
    EXPECT_TRUE(solution.is_proven) << i;
    if (!solution.is_feasible) {
      ++impossible;
      if (solution.smallest_peak > 0) {
        EXPECT_GE(solution.smallest_peak, best.smallest_peak) << i;
      }
      continue;
    }
    EXPECT_EQ(solution.cost, best.cost) << i;
    EXPECT_LE(solution.peak, limit) << i;
    EXPECT_LE(solution.lower_bound, best.cost * (1 + 1e-9)) << i;
    limited += solution.cost > try_all(problem, 0).cost ? 1 : 0;
  }
  EXPECT_GT(limited, 50) << "the limit must matter, or nothing is tested";
  EXPECT_GT(impossible, 50);
}

TEST(SolveChoices, CountsWhatIsAliveTogetherOnly) {
  ChoiceProblem problem{.moments = 2};
  for (int t = 0; t < 2; ++t) problem.variables.push_back({{1, 5}, {{{t, t}, {100, 10}}}});
  EXPECT_EQ(solve_choices(problem, 100).cost, 2) << "200 bytes in sum, 100 at each moment";
  EXPECT_EQ(solve_choices(problem, 99).cost, 10);
}

TEST(SolveChoices, SaysWhenItStopsEarly) {
  std::mt19937 random(5);
  ChoiceProblem problem;
  for (int i = 0; i < 40; ++i) {
    const int bytes = std::uniform_int_distribution<int>(1000, 2000)(random);
    problem.variables.push_back({{0, bytes + i % 3 + 0.5}, {{{0, 0}, {bytes, 0}}}});
  }
  const ChoiceSolution solution = solve_choices(problem, 20011, 1e4);
  EXPECT_TRUE(solution.is_feasible);
  EXPECT_FALSE(solution.is_proven);
  EXPECT_GT(solution.lower_bound, 0);
  EXPECT_LE(solution.lower_bound, solution.cost);
  EXPECT_LE(solution.cost, 1.1 * solution.lower_bound) << "good, if not the best";
}

}  // namespace
}  // namespace colossal::plan::choice_solver_test
