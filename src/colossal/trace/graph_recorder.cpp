#include "colossal/trace/graph_recorder.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "colossal/base/error.h"
#include "colossal/plan/operators.h"
#include "colossal/trace/heard_call.h"

namespace colossal::trace {
namespace {

/// Adds the warnings, and takes the names of LibTorch for operators whose operands the plan does not take.
void check_operators(TracedModule& traced) {
  std::map<std::string, int> unknown;  // operator and the first node that has it
  for (int i = 0; i < static_cast<int>(traced.graph.nodes.size()); ++i) {
    plan::Node& node = traced.graph.nodes[i];
    if (traced.operators[i].whole) continue;
    try {
      if (plan::index_operator(traced.graph, i).is_known) continue;
    } catch (const Error&) {
      node.op = full_name(*traced.operators[i].handle);
      node.dims.clear();
    }
    unknown.emplace(node.op, i);
  }
  for (const auto& [op, node] : unknown) {
    traced.warnings.push_back(concat("no strategy divides the operator ", op, " on these operands (first node: ",
                                     traced.graph.nodes[node].name, "): it runs whole on every rank"));
  }
}

std::string module_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

/// Returns the path up to its last number that is not its end: "layers.0" of "layers.0.fc1" and of "layers.0.wq".
std::string block_of(const std::string& module) {
  size_t end = 0;
  size_t begin = 0;
  for (size_t dot = module.find('.'); dot != std::string::npos; begin = dot + 1, dot = module.find('.', begin))
    if (dot > begin && module.find_first_not_of("0123456789", begin) >= dot) end = dot;
  return module.substr(0, end);
}

/// Returns true for the parameters of a layer, which has one operator. Modules of several name theirs otherwise.
bool is_of_layer(const std::string& parameter) {
  const std::string last = parameter.substr(parameter.rfind('.') + 1);
  return last == "weight" || last == "bias";
}

bool is_view(const std::string& op) {
  static const std::set<std::string> views{"transpose", "permute", "reshape",   "flatten", "slice",
                                           "select",    "squeeze", "unsqueeze", "expand",  "detach"};
  return views.count(op) > 0;
}

std::string joined(const std::string& path, const std::string& name) { return path.empty() ? name : path + "." + name; }

class Namer {
 public:
  Namer(plan::Graph& graph, const std::vector<std::vector<plan::Source>>& operands)
      : graph_(graph), operands_(operands), blocks_(graph.nodes.size()) {
    for (const plan::Parameter& parameter : graph.parameters) taken_.insert(parameter.name);
    for (const plan::Node& node : graph.nodes)
      if (!node.name.empty()) taken_.insert(node.name);
  }

  void name(size_t index) {
    plan::Node& node = graph_.nodes[index];
    if (!node.name.empty()) return;
    const std::string op = node.op.substr(node.op.find(':') == std::string::npos ? 0 : node.op.rfind(':') + 1);
    for (const plan::Source source : operands_[index]) {
      if (!source.is_parameter) continue;
      const std::string parameter = graph_.parameters[source.index].name, module = module_of(parameter);
      const bool of_layer = is_of_layer(parameter);
      blocks_[index] = last_ = block_of(of_layer ? module : parameter);
      const bool first = of_layer && !module.empty() && !is_view(node.op) && taken_.count(module) == 0;
      node.name = unique(first ? module : joined(module, op));
      return;
    }
    int latest = -1;
    for (const plan::Source source : operands_[index])
      if (blocks_[source.index]) latest = std::max(latest, source.index);
    if (latest >= 0) blocks_[index] = blocks_[latest];
    node.name = unique(node.op == "constant" ? op : joined(blocks_[index].value_or(last_), op));
  }

 private:
  std::string unique(const std::string& wanted) {
    std::string name = wanted;
    for (int number = 2; !taken_.insert(name).second; ++number) name = wanted + "_" + std::to_string(number);
    return name;
  }

  plan::Graph& graph_;
  const std::vector<std::vector<plan::Source>>& operands_;
  std::vector<std::optional<std::string>> blocks_;  ///< block of each node; none = the node depends on no parameter
  std::string last_;                                ///< block of the last parameter read
  std::set<std::string> taken_;
};

}  // namespace

std::string dtype_name(at::ScalarType type) {
  static const std::map<at::ScalarType, const char*> names{
      {at::kDouble, "float64"},
      {at::kFloat, "float32"},
      {at::kBFloat16, "bfloat16"},
      {at::kHalf, "float16"},
      {at::kFloat8_e4m3fn, "float8_e4m3fn"},
      {at::kFloat8_e5m2, "float8_e5m2"},
      {at::kLong, "int64"},
      {at::kInt, "int32"},
      {at::kShort, "int16"},
      {at::kChar, "int8"},
      {at::kByte, "uint8"},
      {at::kBool, "bool"},
  };
  const auto found = names.find(type);
  return found == names.end() ? "" : found->second;
}

plan::TensorType type_of(const at::Tensor& tensor) {
  const std::string name = dtype_name(tensor.scalar_type());
  require(!name.empty(), "trace", "tensors of the pass must be of real numbers or integers: got ",
          c10::toString(tensor.scalar_type()));
  return {tensor.sizes().vec(), name};
}

plan::Source GraphRecorder::add_parameter(const std::string& name, const at::Tensor& value, bool trains) {
  parameters_.push_back({name, type_of(value), trains});
  values_.push_back(value);
  return {true, static_cast<int>(parameters_.size()) - 1};
}

plan::Source GraphRecorder::add(plan::Node node, TracedOperator run, std::vector<plan::Source> operands, bool trains) {
  nodes_.push_back(std::move(node));
  operators_.push_back(std::move(run));
  operands_.push_back(std::move(operands));
  trains_.push_back(trains);
  return {false, static_cast<int>(nodes_.size()) - 1};
}

bool GraphRecorder::trains(plan::Source source) const {
  return source.is_parameter ? parameters_[source.index].trains : trains_[source.index];
}

std::string GraphRecorder::last_module() const {
  for (size_t i = nodes_.size(); i-- > 0;)
    for (const plan::Source source : operands_[i])
      if (source.is_parameter) return parameters_[source.index].name;
  return "the inputs";
}

std::vector<int> GraphRecorder::kept_nodes(const std::vector<plan::Source>& results) const {
  std::vector<bool> kept(nodes_.size(), false);
  for (const plan::Source result : results) kept[result.index] = true;
  for (size_t i = nodes_.size(); i-- > 0;) {
    if (!kept[i]) continue;
    for (const plan::Source source : operands_[i])
      if (!source.is_parameter) kept[source.index] = true;
  }
  std::vector<int> indices;
  for (size_t i = 0; i < nodes_.size(); ++i)
    if (kept[i] || operators_[i].input >= 0) indices.push_back(static_cast<int>(i));
  return indices;
}

TracedModule GraphRecorder::finish(const std::vector<plan::Source>& results,
                                   std::vector<TracedModule::Statistics> statistics) const {
  TracedModule traced;
  traced.graph.parameters = parameters_;
  traced.parameters = values_;
  const std::vector<int> kept = kept_nodes(results);
  std::vector<int> places(nodes_.size(), -1);
  std::vector<std::vector<plan::Source>> operands;
  const auto move = [&](plan::Source source) {
    return source.is_parameter ? source : plan::Source{false, places[source.index]};
  };
  for (const int index : kept) {
    places[index] = static_cast<int>(traced.graph.nodes.size());
    traced.graph.nodes.push_back(nodes_[index]);
    traced.operators.push_back(operators_[index]);
    for (TracedOperator::Place& place : traced.operators.back().places) place.source = move(place.source);
    operands.emplace_back();
    for (const plan::Source source : operands_[index]) operands.back().push_back(move(source));
  }
  for (const plan::Source result : results) traced.outputs.push_back(move(result));
  name_nodes(traced.graph, operands);
  for (size_t i = 0; i < kept.size(); ++i)
    for (const plan::Source source : operands[i]) traced.graph.nodes[i].inputs.push_back(traced.graph.name_of(source));
  traced.graph.settle();
  check_operators(traced);
  for (TracedModule::Statistics& of_node : statistics) {
    of_node.node = places[of_node.node];
    if (of_node.node >= 0) traced.statistics.push_back(std::move(of_node));
  }
  return traced;
}

void name_nodes(plan::Graph& graph, const std::vector<std::vector<plan::Source>>& operands) {
  Namer namer(graph, operands);
  for (size_t i = 0; i < graph.nodes.size(); ++i) namer.name(i);
}

}  // namespace colossal::trace
