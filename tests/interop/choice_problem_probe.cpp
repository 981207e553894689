// Prints the choice problem of a small decoder, with our solution of it, for the script that solves it with HiGHS.
//
// Usage: colossal_choice_problem_probe LAYERS MESH SHARE
//   SHARE: memory limit as a share of the peak of the fastest plan; 0 = no limit
//   prints {"limit", "moments", "variables": [{"cost", "live": [{"first", "last", "bytes"}]}],
//           "pairs": [{"first", "second", "cost", "bytes", "intervals"}], "solved": {"cost", "peak", "proven"}};
//   a cost of null cannot be chosen; "cost" of "solved" is null if nothing fits.
#include <cstdio>
#include <cstdlib>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/plan/choice_solver.h"
#include "colossal/plan/plan_problem.h"
#include "plan/small_graphs.h"

namespace {

using namespace colossal;
using nlohmann::json;

json costs_of(const std::vector<double>& costs) {
  json list = json::array();
  for (const double cost : costs) list.push_back(cost == plan::kForbidden ? json() : json(cost));
  return list;
}

json json_of(const plan::Variable& variable) {
  json live = json::array();
  for (const plan::LiveBytes& one : variable.live)
    live.push_back({{"first", one.interval.first}, {"last", one.interval.last}, {"bytes", one.bytes}});
  return {{"cost", costs_of(variable.cost)}, {"live", std::move(live)}};
}

json json_of(const plan::Pair& pair) {
  std::vector<double> costs = pair.cost;
  for (double& cost : costs) cost *= pair.count();
  json intervals = json::array({{pair.interval.first, pair.interval.last}});
  for (const plan::Interval again : pair.repeats) intervals.push_back({again.first, again.last});
  return {{"first", pair.first},
          {"second", pair.second},
          {"cost", costs_of(costs)},
          {"bytes", pair.bytes},
          {"intervals", std::move(intervals)}};
}

json json_of(const plan::ChoiceProblem& problem, int64_t limit) {
  json variables = json::array(), pairs = json::array();
  for (const plan::Variable& variable : problem.variables) variables.push_back(json_of(variable));
  for (const plan::Pair& pair : problem.pairs) pairs.push_back(json_of(pair));
  const plan::ChoiceSolution solution = plan::solve_choices(problem, limit);
  return {{"limit", limit},
          {"moments", problem.moments},
          {"variables", std::move(variables)},
          {"pairs", std::move(pairs)},
          {"solved",
           {{"cost", solution.is_feasible ? json(solution.cost) : json()},
            {"peak", solution.peak},
            {"proven", solution.is_proven}}}};
}

int run(int count, char** words) {
  require(count == 4, "probe", "usage: colossal_choice_problem_probe LAYERS MESH SHARE; no layers: two linear layers");
  const plan::test::DecoderSizes sizes{.batch = 4,
                                       .sequence = 512,
                                       .hidden = 512,
                                       .heads = 8,
                                       .kv_heads = 4,
                                       .inner = 1536,
                                       .vocabulary = 8192,
                                       .layers = std::atoi(words[1])};
  const plan::Mesh mesh = plan::parse_mesh(words[2]);
  plan::Links links;
  links.operations = 2e13;
  links.axes = {{2e-6, 2e10}, {2e-6, 1e11}};
  const plan::Graph graph =
      sizes.layers > 0 ? plan::test::decoder(sizes) : plan::test::mlp(4096, 512, 1536, "bfloat16");
  const plan::PlanProblem problem = plan::make_problem(graph, mesh, links, {});
  const int64_t peak = plan::solve_choices(problem.choices).peak;
  const double share = std::atof(words[3]);
  std::puts(json_of(problem.choices, static_cast<int64_t>(static_cast<double>(peak) * share)).dump().c_str());
  return 0;
}

}  // namespace

int main(int count, char** words) {
  try {
    return run(count, words);
  } catch (const colossal::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
