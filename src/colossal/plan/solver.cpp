#include "colossal/plan/solver.h"

#include <algorithm>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/plan/choice_solver.h"
#include "colossal/plan/plan_problem.h"

namespace colossal::plan {
namespace {

void add_conversions(Plan& plan, const Graph& graph, int node, Conversions& conversions) {
  for (size_t i = 0; i < graph.operands[node].size(); ++i) {
    const Source source = graph.operands[node][i];
    if (source.is_parameter) continue;
    const Spec &from = plan.strategies[source.index].output, &to = plan.strategies[node].operands[i];
    if (from == to) continue;
    PlannedConversion made{source.index, node, static_cast<int>(i), {}, {}};
    const TensorType& type = graph.nodes[source.index].output;
    made.forward = conversions.get(type, from, to);
    if (graph.needs_gradient[source.index] && graph.needs_gradient[node])
      made.backward = conversions.get(type, to, from);
    plan.seconds += made.forward.seconds + made.backward.seconds;
    plan.call_bytes += made.forward.bytes + made.backward.bytes;
    plan.conversions.push_back(std::move(made));
  }
}

/// Fills what follows from the strategies of a plan, except its peak.
void add_prices(Plan& plan, const Graph& graph, const Links& links) {
  Conversions conversions(plan.mesh, links);
  std::vector<bool> is_counted(graph.parameters.size(), false);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    plan.seconds += plan.strategies[i].seconds();
    plan.call_bytes += plan.strategies[i].call_bytes;
    for (size_t k = 0; k < graph.operands[i].size(); ++k) {
      const Source source = graph.operands[i][k];
      if (!source.is_parameter || is_counted[source.index]) continue;
      is_counted[source.index] = true;
      plan.parameter_bytes +=
          parameter_bytes(graph.parameters[source.index], plan.strategies[i].operands[k], plan.mesh);
    }
    add_conversions(plan, graph, static_cast<int>(i), conversions);
  }
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    const Parameter& unused = graph.parameters[i];
    if (!is_counted[i]) plan.parameter_bytes += parameter_bytes(unused, Spec(unused.type.shape.size(), 0), plan.mesh);
  }
}

std::string legal_names(const std::vector<Strategy>& strategies) { return join(strategies, "; ", &Strategy::name); }

}  // namespace

Plan solve(const Graph& graph, const Mesh& mesh, const Links& links, const SolverOptions& options) {
  const PlanProblem problem = make_problem(graph, mesh, links, options);
  const ChoiceSolution solution = solve_choices(problem.choices, options.memory);
  require(solution.is_feasible || solution.smallest_peak > 0, "plan",
          "the nodes that share a parameter must have a spec in common: no strategies can be combined; ",
          "annotate fewer of them");
  require(solution.is_feasible, "plan", solution.is_proven ? "no plan fits" : "no plan was found that fits",
          " the memory of a rank: got ", print_bytes(options.memory), ", the smallest peak found is ",
          readable_bytes(solution.smallest_peak), " (", solution.smallest_peak, " bytes); raise --memory or add ranks");
  Plan plan{.mesh = mesh};
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    plan.strategies.push_back(problem.strategies[i][solution.choices[problem.node_variable[i]]]);
  add_prices(plan, graph, links);
  plan.peak_bytes = solution.peak;
  plan.is_proven = solution.is_proven;
  plan.lower_bound = solution.lower_bound;
  return plan;
}

Plan price_plan(const Graph& graph, const Mesh& mesh, const Links& links, const std::vector<std::string>& strategies) {
  require(strategies.size() == graph.nodes.size(), "plan", "a plan must have a strategy for each node: got ",
          strategies.size(), " for ", graph.nodes.size());
  const PlanProblem problem = make_problem(graph, mesh, links, {.share_blocks = false});
  ChoiceProblem choices = problem.choices;
  Plan plan{.mesh = mesh};
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto& legal = problem.strategies[i];
    const auto found = std::find_if(legal.begin(), legal.end(),
                                    [&](const Strategy& strategy) { return strategy.name == strategies[i]; });
    require(found != legal.end(), "plan", "node ", printable(graph.nodes[i].name), " has no strategy `",
            printable(strategies[i]), "` on the mesh ", print_mesh(mesh), "; the legal ones are ", legal_names(legal));
    plan.strategies.push_back(*found);
    std::vector<double>& cost = choices.variables[problem.node_variable[i]].cost;
    for (size_t k = 0; k < cost.size(); ++k)
      if (legal[k].name != found->name) cost[k] = kForbidden;
  }
  const ChoiceSolution solution = solve_choices(choices);  // what is left are the specs of shared parameters
  require(solution.is_feasible, "plan",
          "nodes that read one parameter must read it under one spec: ", "the strategies of the plan differ");
  add_prices(plan, graph, links);
  plan.peak_bytes = solution.peak;
  return plan;
}

}  // namespace colossal::plan
