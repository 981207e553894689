#include "colossal/plan/plan_problem.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/suggest.h"

namespace colossal::plan {
namespace {

/// Moments at which the tensors of a graph are alive. Node i runs forward at moment i and backward at 2N - 1 - i.
struct Lifetimes {
  std::vector<Interval> outputs, gradients;
  std::vector<int> reads_until;  // for each node: until when it needs its operands
  std::vector<bool> has_memory;
};

Lifetimes lifetimes_of(const Graph& graph) {
  const int nodes = static_cast<int>(graph.nodes.size());
  const auto backward = [nodes](int node) { return 2 * nodes - 1 - node; };
  Lifetimes times;
  times.outputs.resize(nodes);
  times.gradients.resize(nodes);
  times.reads_until.resize(nodes);
  times.has_memory.assign(nodes, true);
  for (int i = nodes - 1; i >= 0; --i) {
    const IndexedOperator op = index_operator(graph, i);
    const bool is_view = op.work == Work::View;
    times.has_memory[i] = !is_view;
    int last = op.saves_output && graph.needs_gradient[i] ? backward(i) : i;
    int begins = backward(i);
    for (const int reader : graph.consumers[i]) {
      last = std::max(last, times.reads_until[reader]);
      if (graph.needs_gradient[reader]) begins = std::min(begins, backward(reader));
    }
    times.outputs[i] = {i, last};
    times.gradients[i] = {begins, backward(i)};
    times.reads_until[i] = is_view ? last : op.saves_operands && graph.needs_gradient[i] ? backward(i) : i;
  }
  return times;
}

/// Returns the name with numbers of blocks replaced ("layers.#.fc1" of "layers.3.fc1"), or "" if the node is in none.
/// The last part of a name is no block, because the layers of a sequence are alike without being repeated blocks.
std::string block_pattern(const std::string& name) {
  std::string pattern;
  bool has_block = false;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = name.find('.', begin);
    std::string part = name.substr(begin, end == std::string::npos ? end : end - begin);
    const bool is_number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    if (is_number && end != std::string::npos) {
      part = "#";
      has_block = true;
    }
    pattern += (pattern.empty() ? "" : ".") + part;
    if (end == std::string::npos) break;
    begin = end + 1;
  }
  return has_block ? pattern : "";
}

std::string signature_of(const std::vector<Strategy>& strategies, int operand) {
  std::string text;
  for (const Strategy& strategy : strategies) {
    const Spec& spec = operand < 0 ? strategy.output : strategy.operands[operand];
    text.append(spec.begin(), spec.end());
    text += '/';
  }
  return text;
}

struct EdgeTable {
  std::vector<double> cost;
  std::vector<int64_t> bytes;
};

class ProblemBuilder {
 public:
  ProblemBuilder(const Graph& graph, const Mesh& mesh, const Links& links, const SolverOptions& options)
      : graph_(graph), mesh_(mesh), links_(links), options_(options), conversions_(mesh, links) {}

  PlanProblem build() {
    times_ = lifetimes_of(graph_);
    made_.choices.moments = 2 * static_cast<int>(graph_.nodes.size());
    count_uses();
    check_annotated();
    find_strategies();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) add_node(static_cast<int>(i));
    for (size_t i = 0; i < graph_.parameters.size(); ++i)
      if (uses_[i] != 1) add_parameter(static_cast<int>(i));
    for (size_t i = 0; i < graph_.nodes.size(); ++i) add_edges(static_cast<int>(i));
    return std::move(made_);
  }

 private:
  Interval always() const { return {0, made_.choices.moments - 1}; }

  void count_uses() {
    uses_.assign(graph_.parameters.size(), 0);
    for (const auto& sources : graph_.operands)
      for (const Source source : sources)
        if (source.is_parameter) ++uses_[source.index];
  }

  void check_annotated() {
    std::vector<std::string> names;
    for (const Parameter& parameter : graph_.parameters) names.push_back(parameter.name);
    for (const Node& node : graph_.nodes) names.push_back(node.name);
    const std::set<std::string> known(names.begin(), names.end());
    for (const auto& [name, text] : options_.annotate) {
      require(known.count(name) > 0, "plan", "an annotated name must be a node or a parameter: got ", printable(name),
              known.count(name) > 0 ? "" : did_you_mean(name, names));
      pins_[name] = parse_spec(text, mesh_);
    }
  }

  void keep_pinned(const std::string& name, std::vector<Strategy>& strategies, int operand) const {
    const auto pin = pins_.find(name);
    if (pin == pins_.end()) return;
    std::set<std::string> legal;
    std::vector<Strategy> kept;
    for (Strategy& strategy : strategies) {
      const Spec& spec = operand < 0 ? strategy.output : strategy.operands[operand];
      legal.insert(print_spec(spec, mesh_));
      if (spec == pin->second) kept.push_back(strategy);
    }
    require(!kept.empty(), "plan", "an annotated spec must be one that a strategy has: got ",
            print_spec(pin->second, mesh_), " for ", printable(name), "; the legal ones are ", join(legal, "; "));
    strategies = std::move(kept);
  }

  void find_strategies() {
    const std::vector<bool> side = side_nodes(graph_);
    for (int i = 0; i < static_cast<int>(graph_.nodes.size()); ++i) {
      std::vector<Strategy> strategies = strategies_of(graph_, i, mesh_, links_);
      if (side[i]) strategies.resize(1);
      keep_pinned(graph_.nodes[i].name, strategies, -1);
      for (size_t k = 0; k < graph_.operands[i].size(); ++k) {
        const Source source = graph_.operands[i][k];
        if (source.is_parameter) keep_pinned(graph_.name_of(source), strategies, static_cast<int>(k));
      }
      made_.strategies.push_back(std::move(strategies));
    }
  }

  /// Returns the variable of a node: that of an earlier node of a repeated block, or a new one.
  int variable_of(int node) {
    Variable variable{.cost = std::vector<double>(made_.strategies[node].size(), 0)};
    const std::string pattern = options_.share_blocks ? block_pattern(graph_.nodes[node].name) : "";
    if (!pattern.empty()) {
      std::string key = pattern + '\n' + graph_.nodes[node].op + signature_of(made_.strategies[node], -1);
      for (size_t i = 0; i < graph_.operands[node].size(); ++i)
        key += '\n' + print_shape(graph_.type_of(graph_.operands[node][i]).shape) +
               signature_of(made_.strategies[node], static_cast<int>(i));
      const auto [found, is_new] = shared_.emplace(std::move(key), static_cast<int>(made_.choices.variables.size()));
      if (!is_new) return found->second;
    }
    made_.choices.variables.push_back(std::move(variable));
    return static_cast<int>(made_.choices.variables.size()) - 1;
  }

  void add_node(int node) {
    const int at = variable_of(node);
    made_.node_variable.push_back(at);
    Variable& variable = made_.choices.variables[at];
    LiveBytes output{times_.outputs[node], {}}, gradient{times_.gradients[node], {}}, parameters{always(), {}},
        gathered{{node, times_.reads_until[node]}, {}};
    int64_t owned = 0, most_gathered = 0;
    for (size_t k = 0; k < made_.strategies[node].size(); ++k) {
      const Strategy& strategy = made_.strategies[node][k];
      variable.cost[k] += strategy.seconds();
      output.bytes.push_back(strategy.output_bytes);
      gradient.bytes.push_back(strategy.output_bytes);
      gathered.bytes.push_back(strategy.gathered_bytes);
      most_gathered = std::max(most_gathered, strategy.gathered_bytes);
      int64_t bytes = 0;
      for (size_t i = 0; i < graph_.operands[node].size(); ++i) {
        const Source source = graph_.operands[node][i];
        if (source.is_parameter && uses_[source.index] == 1)
          bytes += parameter_bytes(graph_.parameters[source.index], strategy.operands[i], mesh_);
      }
      parameters.bytes.push_back(bytes);
      owned = std::max(owned, bytes);
    }
    if (times_.has_memory[node]) variable.live.push_back(std::move(output));
    if (graph_.needs_gradient[node]) variable.live.push_back(std::move(gradient));
    if (owned > 0) variable.live.push_back(std::move(parameters));
    if (most_gathered > 0) variable.live.push_back(std::move(gathered));
  }

  /// Adds the variable of a parameter that several nodes read: all of them must have it under one spec.
  void add_parameter(int parameter) {
    const Parameter& shared = graph_.parameters[parameter];
    std::vector<Spec> specs = legal_specs(shared.type.shape, mesh_);
    if (uses_[parameter] == 0) specs.resize(1);
    const int at = static_cast<int>(made_.choices.variables.size());
    Variable variable{.cost = std::vector<double>(specs.size(), 0), .live = {{always(), {}}}};
    for (const Spec& spec : specs) variable.live[0].bytes.push_back(parameter_bytes(shared, spec, mesh_));
    made_.choices.variables.push_back(std::move(variable));
    for (size_t node = 0; node < graph_.nodes.size(); ++node) {
      for (size_t i = 0; i < graph_.operands[node].size(); ++i) {
        if (graph_.operands[node][i] != Source{true, parameter}) continue;
        Pair pair{.first = at, .second = made_.node_variable[node]};
        for (const Spec& spec : specs)
          for (const Strategy& strategy : made_.strategies[node])
            pair.cost.push_back(strategy.operands[i] == spec ? 0 : kForbidden);
        made_.choices.pairs.push_back(std::move(pair));
      }
    }
  }

  const EdgeTable& table_of(int from, int to, int operand) {
    const TensorType& type = graph_.nodes[from].output;
    const bool with_gradient = graph_.needs_gradient[from] && graph_.needs_gradient[to];
    std::string key = print_shape(type.shape) + type.dtype + (with_gradient ? "+" : "-") +
                      signature_of(made_.strategies[from], -1) + '\n' + signature_of(made_.strategies[to], operand);
    const auto [found, is_new] = tables_.try_emplace(std::move(key));
    EdgeTable& table = found->second;
    if (!is_new) return table;
    for (const Strategy& maker : made_.strategies[from]) {
      for (const Strategy& reader : made_.strategies[to]) {
        const Spec& wanted = reader.operands[operand];
        double seconds = 0;
        if (wanted != maker.output) {
          seconds = conversions_.get(type, maker.output, wanted).seconds;
          if (with_gradient) seconds += conversions_.get(type, wanted, maker.output).seconds;
        }
        table.cost.push_back(seconds);
        table.bytes.push_back(wanted == maker.output ? 0 : type.bytes() / blocks_of(wanted, mesh_));
      }
    }
    return table;
  }

  void add_edges(int node) {
    for (size_t i = 0; i < graph_.operands[node].size(); ++i) {
      const Source source = graph_.operands[node][i];
      if (source.is_parameter) continue;
      const EdgeTable& table = table_of(source.index, node, static_cast<int>(i));
      const Interval interval{node, times_.reads_until[node]};
      const int first = made_.node_variable[source.index], second = made_.node_variable[node];
      if (first != second) {
        const auto [found, is_new] = pairs_.emplace(std::tuple(first, second, &table), made_.choices.pairs.size());
        if (is_new) {
          made_.choices.pairs.push_back({first, second, table.cost, table.bytes, interval});
        } else {
          made_.choices.pairs[found->second].repeats.push_back(interval);
        }
        continue;
      }
      Variable& variable = made_.choices.variables[first];  // two nodes of blocks that share their strategy
      LiveBytes copies{interval, {}};
      for (size_t k = 0; k < variable.cost.size(); ++k) {
        variable.cost[k] += table.cost[k * variable.cost.size() + k];
        copies.bytes.push_back(table.bytes[k * variable.cost.size() + k]);
      }
      if (std::any_of(copies.bytes.begin(), copies.bytes.end(), [](int64_t bytes) { return bytes > 0; }))
        variable.live.push_back(std::move(copies));
    }
  }

  const Graph& graph_;
  const Mesh& mesh_;
  const Links& links_;
  const SolverOptions& options_;
  Conversions conversions_;
  Lifetimes times_;
  PlanProblem made_;
  std::vector<int> uses_;
  std::map<std::string, Spec> pins_;
  std::map<std::string, int> shared_;
  std::map<std::string, EdgeTable> tables_;
  std::map<std::tuple<int, int, const EdgeTable*>, size_t> pairs_;  // by variables and table, index in choices.pairs
};

}  // namespace

PlanProblem make_problem(const Graph& graph, const Mesh& mesh, const Links& links, const SolverOptions& options) {
  return ProblemBuilder(graph, mesh, links, options).build();
}

}  // namespace colossal::plan
