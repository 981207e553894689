#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/base/number.h"
#include "colossal/cli/plan.h"
#include "colossal/plan/cluster.h"
#include "colossal/plan/links.h"
#include "colossal/plan/plan_file.h"
#include "colossal/plan/profile.h"
#include "colossal/plan/solver.h"
#include "colossal/plan/strategies.h"

namespace colossal::cli {
namespace {

using ResultJson = nlohmann::ordered_json;
using plan::Call;
using plan::Graph;
using plan::Mesh;
using plan::Plan;
using plan::Strategy;

/// A table of texts whose columns are as wide as their longest cell. The last column is not padded. A row of one cell
/// is a line of its own.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> head) { add(std::move(head)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print() const {
    std::vector<size_t> widths(rows_[0].size(), 0);
    for (const auto& row : rows_)
      for (size_t i = 0; i < row.size() && row.size() > 1; ++i) widths[i] = std::max(widths[i], row[i].size());
    for (const auto& row : rows_) {
      std::string line;
      for (size_t i = 0; i < row.size(); ++i)
        line += i + 1 == row.size() ? row[i] : row[i] + std::string(widths[i] + 2 - row[i].size(), ' ');
      std::printf("%s\n", line.c_str());
    }
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string short_number(double value) { return text_of(value, 4); }

std::string specs_text(const std::vector<plan::Spec>& specs, const Mesh& mesh) {
  if (specs.empty()) return "-";
  return join(specs, " ", [&](const plan::Spec& spec) { return print_spec(spec, mesh); });
}

std::string call_text(const Call& call, const Mesh& mesh) {
  return concat(plan::name_of(call.movement), " over ", mesh.axes[call.axis].name);
}

std::string calls_text(const Strategy& strategy, const Mesh& mesh) {
  std::string text;
  for (const Call& call : strategy.calls)
    text += concat(text.empty() ? "" : "; ", call.in_backward ? "backward " : "forward ", call_text(call, mesh), " of ",
                   printable(call.tensor), " (", readable_bytes(call.bytes), ")");
  return text;
}

ResultJson json_of(const std::vector<Call>& calls, const Mesh& mesh) {
  ResultJson list = ResultJson::array();
  for (const Call& call : calls) {
    ResultJson object{{"collective", plan::name_of(call.movement)},
                      {"axis", mesh.axes[call.axis].name},
                      {"bytes", call.bytes},
                      {"seconds", call.seconds}};
    if (!call.tensor.empty()) {
      object["phase"] = call.in_backward ? "backward" : "forward";
      object["tensor"] = call.tensor;
    } else {
      object["result"] = print_spec(call.result, mesh);
    }
    list.push_back(std::move(object));
  }
  return list;
}

ResultJson json_of(const Strategy& strategy, const Mesh& mesh) {
  ResultJson inputs = ResultJson::array();
  for (const plan::Spec& spec : strategy.operands) inputs.push_back(print_spec(spec, mesh));
  return {{"strategy", strategy.name},
          {"inputs", std::move(inputs)},
          {"output", print_spec(strategy.output, mesh)},
          {"operations", strategy.operations},
          {"seconds", strategy.seconds()},
          {"compute_seconds", strategy.compute_seconds},
          {"call_seconds", strategy.call_seconds},
          {"call_bytes", strategy.call_bytes},
          {"output_bytes", strategy.output_bytes},
          {"parameter_bytes", strategy.parameter_bytes},
          {"calls", json_of(strategy.calls, mesh)}};
}

void print_json(const ResultJson& object) { std::printf("%s\n", json_line(object).c_str()); }

/// Warns once of each operator without strategies.
void warn_unknown(const Graph& graph) {
  std::set<std::string> names;
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    if (!plan::index_operator(graph, static_cast<int>(i)).is_known) names.insert(printable(graph.nodes[i].op));
  for (const std::string& name : names)
    std::fprintf(stderr, "colossal: the operator %s has no strategies: every rank runs it whole\n", name.c_str());
}

std::string parameters_of(const Graph& graph, int node) {
  std::string names;
  for (const plan::Source source : graph.operands[node])
    if (source.is_parameter) names += (names.empty() ? "" : " ") + printable(graph.name_of(source));
  return names.empty() ? "-" : names;
}

int list_nodes(const Graph& graph, const plan::Cluster& cluster, bool json) {
  const Mesh one;
  const plan::Links links = links_of(cluster, one);
  TextTable table({"node", "operator", "shape", "dtype", "operations", "bytes", "seconds", "parameters"});
  ResultJson nodes = ResultJson::array();
  double operations = 0, seconds = 0;
  for (int i = 0; i < static_cast<int>(graph.nodes.size()); ++i) {
    const plan::Node& node = graph.nodes[i];
    const Strategy whole = strategies_of(graph, i, one, links)[0];
    const plan::WorkCost cost = cost_of_work(graph, i, index_operator(graph, i), whole, 1, one, links);
    operations += cost.operations;
    seconds += cost.seconds;
    table.add({printable(node.name), printable(node.op), plan::print_shape(node.output.shape), node.output.dtype,
               short_number(cost.operations), readable_bytes(static_cast<int64_t>(cost.bytes)),
               short_number(cost.seconds), parameters_of(graph, i)});
    nodes.push_back({{"name", node.name},
                     {"op", node.op},
                     {"shape", node.output.shape},
                     {"dtype", node.output.dtype},
                     {"inputs", node.inputs},
                     {"operations", cost.operations},
                     {"bytes", cost.bytes},
                     {"seconds", cost.seconds}});
  }
  if (json) {
    print_json({{"nodes", std::move(nodes)}, {"operations", operations}, {"seconds", seconds}});
    return 0;
  }
  table.print();
  std::printf("\n%zu nodes, %zu parameters; forward and backward on one rank: %s operations, %s seconds\n",
              graph.nodes.size(), graph.parameters.size(), short_number(operations).c_str(),
              short_number(seconds).c_str());
  return 0;
}

int list_strategies(const Graph& graph, const std::string& name, const Mesh& mesh, const plan::Cluster& cluster,
                    bool json) {
  const int node = graph.index_of(name);
  const auto strategies = strategies_of(graph, node, mesh, links_of(cluster, mesh));
  TextTable table({"strategy", "inputs", "output", "seconds", "sent", "output bytes", "parameter bytes", "calls"});
  ResultJson list = ResultJson::array();
  for (const Strategy& strategy : strategies) {
    table.add({strategy.name, specs_text(strategy.operands, mesh), print_spec(strategy.output, mesh),
               short_number(strategy.seconds()), readable_bytes(strategy.call_bytes),
               readable_bytes(strategy.output_bytes), readable_bytes(strategy.parameter_bytes),
               calls_text(strategy, mesh)});
    list.push_back(json_of(strategy, mesh));
  }
  if (json) {
    print_json({{"node", name}, {"mesh", print_mesh(mesh)}, {"strategies", std::move(list)}});
    return 0;
  }
  table.print();
  return 0;
}

std::string steps_text(const plan::Conversion& path, const Mesh& mesh) {
  return join(path.calls, ", ", [&](const Call& call) { return call_text(call, mesh); });
}

std::string conversion_text(const plan::PlannedConversion& made, const Plan& plan, const Graph& graph) {
  std::string text =
      concat(printable(graph.nodes[made.from].name), ": ", print_spec(plan.strategies[made.from].output, plan.mesh),
             " to ", print_spec(plan.strategies[made.to].operands[made.operand], plan.mesh), " by ",
             steps_text(made.forward, plan.mesh), " for ", printable(graph.nodes[made.to].name));
  if (!made.backward.calls.empty()) text += "; its gradient back by " + steps_text(made.backward, plan.mesh);
  return text;
}

std::string proof_text(const Plan& plan, bool was_solved) {
  if (!was_solved) return "";
  if (plan.is_proven) return "; proven optimal";
  return concat("; not proven optimal: no plan takes less than ", short_number(plan.lower_bound), " seconds");
}

void print_plan_table(const Plan& plan, const Graph& graph, bool was_solved, int64_t memory) {
  TextTable table({"node", "strategy", "inputs", "output", "seconds", "sent"});
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Strategy& strategy = plan.strategies[i];
    table.add({printable(graph.nodes[i].name), strategy.name, specs_text(strategy.operands, plan.mesh),
               print_spec(strategy.output, plan.mesh), short_number(strategy.seconds()),
               readable_bytes(strategy.call_bytes)});
    for (const plan::PlannedConversion& made : plan.conversions) {
      if (made.to != static_cast<int>(i)) continue;
      table.add({"  " + conversion_text(made, plan, graph)});
    }
  }
  table.print();
  std::printf("\n%s: %s seconds, %s sent, peak %s with %s of parameters%s\n", print_mesh(plan.mesh).c_str(),
              short_number(plan.seconds).c_str(), readable_bytes(plan.call_bytes).c_str(),
              readable_bytes(plan.peak_bytes).c_str(), readable_bytes(plan.parameter_bytes).c_str(),
              proof_text(plan, was_solved).c_str());
  if (memory > 0)
    std::printf("the plan %s %s\n", plan.peak_bytes <= memory ? "fits" : "does not fit", print_bytes(memory).c_str());
}

ResultJson json_of(const Plan& plan, const Graph& graph, bool was_solved, int64_t memory) {
  ResultJson nodes = ResultJson::array(), conversions = ResultJson::array();
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    ResultJson node{{"name", graph.nodes[i].name}};
    node.update(json_of(plan.strategies[i], plan.mesh));
    nodes.push_back(std::move(node));
  }
  for (const plan::PlannedConversion& made : plan.conversions)
    conversions.push_back({{"from", graph.nodes[made.from].name},
                           {"to", graph.nodes[made.to].name},
                           {"operand", made.operand},
                           {"forward", json_of(made.forward.calls, plan.mesh)},
                           {"backward", json_of(made.backward.calls, plan.mesh)}});
  ResultJson object{{"mesh", print_mesh(plan.mesh)},
                    {"seconds", plan.seconds},
                    {"call_bytes", plan.call_bytes},
                    {"peak_bytes", plan.peak_bytes},
                    {"parameter_bytes", plan.parameter_bytes}};
  if (memory > 0) object["fits"] = plan.peak_bytes <= memory;
  if (was_solved) {
    object["proven_optimal"] = plan.is_proven;
    object["lower_bound_seconds"] = plan.lower_bound;
  }
  object["nodes"] = std::move(nodes);
  object["conversions"] = std::move(conversions);
  return object;
}

/// Returns the cluster that --cluster names.
plan::Cluster cluster_of(const std::string& name) {
  if (name != "this") return plan::Cluster(plan::find_profile(name));
  const std::string path = plan::stored_profile_path();
  require(std::filesystem::exists(path), "plan", "this machine has no profile at ", path,
          "; run `colossal plan --calibrate`, or name another --cluster");
  return plan::Cluster(plan::load_profile(path));
}

Plan find_plan(const Graph& graph, const GraphWishes& wishes, const plan::Cluster& cluster) {
  if (wishes.plan.empty()) {
    const Mesh mesh = plan::parse_mesh(wishes.mesh);
    return solve(graph, mesh, links_of(cluster, mesh), {.memory = wishes.memory});
  }
  const plan::PlanFile file = plan::read_plan(wishes.plan, graph);
  if (!wishes.mesh.empty()) {
    const Mesh mesh = plan::parse_mesh(wishes.mesh);
    for (const plan::Axis& axis : mesh.axes) {
      const int64_t size = file.mesh.axes[file.mesh.find(axis.name)].size;
      require(axis.size == size, "plan", "--mesh must be the mesh of the plan, ", print_mesh(file.mesh), ": got ",
              axis.name, "=", axis.size, "; leave out --mesh");
    }
  }
  return price_plan(graph, file.mesh, links_of(cluster, file.mesh), file.strategies);
}

}  // namespace

int plan_graph(const GraphWishes& wishes) {
  const Graph graph = plan::read_graph(wishes.graph);
  const plan::Cluster cluster = cluster_of(wishes.cluster);
  warn_unknown(graph);
  if (!wishes.node.empty())
    return list_strategies(graph, wishes.node, plan::parse_mesh(wishes.mesh.empty() ? "data=1" : wishes.mesh), cluster,
                           wishes.json);
  if (wishes.mesh.empty() && wishes.plan.empty()) return list_nodes(graph, cluster, wishes.json);
  const Plan plan = find_plan(graph, wishes, cluster);
  const bool was_solved = wishes.plan.empty();
  if (wishes.json) {
    print_json(json_of(plan, graph, was_solved, wishes.memory));
  } else {
    print_plan_table(plan, graph, was_solved, wishes.memory);
  }
  if (!wishes.to.empty()) write_plan(plan, graph, wishes.to);
  return 0;
}

}  // namespace colossal::cli
