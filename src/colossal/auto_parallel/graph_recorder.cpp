#include "colossal/auto_parallel/graph_recorder.h"

#include <algorithm>
#include <map>

#include "colossal/auto_parallel/heard_call.h"
#include "colossal/auto_parallel/node_names.h"
#include "colossal/base/error.h"
#include "colossal/plan/operators.h"

namespace colossal::automatic {
namespace {

/// Adds the warnings, and takes the names of LibTorch for operators whose operands the plan does not take.
void check_operators(TracedModule& traced) {
  std::map<std::string, int> unknown;  // operator and the first node that has it
  for (int i = 0; i < static_cast<int>(traced.graph.nodes.size()); ++i) {
    plan::Node& node = traced.graph.nodes[i];
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

}  // namespace

plan::TensorType type_of(const at::Tensor& tensor) {
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
  const auto found = names.find(tensor.scalar_type());
  require(found != names.end(), "auto_parallel", "tensors of the pass must be of real numbers or integers: got ",
          c10::toString(tensor.scalar_type()));
  return {tensor.sizes().vec(), found->second};
}

plan::Source GraphRecorder::add_parameter(const std::string& name, const at::Tensor& value) {
  parameters_.push_back({name, type_of(value), value.requires_grad()});
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

std::vector<int> GraphRecorder::kept_nodes(plan::Source loss) const {
  std::vector<bool> kept(nodes_.size(), false);
  kept[loss.index] = true;
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

TracedModule GraphRecorder::finish(plan::Source loss, std::vector<TracedModule::Statistics> statistics) const {
  TracedModule traced;
  traced.graph.parameters = parameters_;
  traced.parameters = values_;
  const std::vector<int> kept = kept_nodes(loss);
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

}  // namespace colossal::automatic
