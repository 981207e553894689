#include "colossal/auto_parallel/apply.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/comm/collectives.h"
#include "colossal/trace/graph_recorder.h"
#include "colossal/trace/trace.h"

namespace colossal::auto_parallel {
namespace {

/// Returns the conversions of a plan by the node and the operand that read them.
std::map<std::pair<int, int>, const plan::PlannedConversion*> by_reader(const plan::Plan& plan) {
  std::map<std::pair<int, int>, const plan::PlannedConversion*> made;
  for (const plan::PlannedConversion& c : plan.conversions) made[{c.to, c.operand}] = &c;
  return made;
}

void count_calls(std::map<comm::Traffic::Key, comm::Traffic::Count>& traffic, const std::vector<plan::Call>& calls,
                 const plan::Mesh& mesh, bool is_gradient, const std::set<std::string>& left_out) {
  for (const plan::Call& call : calls) {
    if (call.movement == plan::Movement::Slice) continue;
    if (call.movement == plan::Movement::AllReduce && left_out.contains(call.tensor)) continue;
    const bool in_backward = is_gradient || call.in_backward;
    comm::Traffic::Count& count = traffic[{mesh.axes[call.axis].name, plan::name_of(call.movement),
                                           in_backward ? comm::Phase::Backward : comm::Phase::Forward}];
    ++count.calls;
    count.bytes += static_cast<double>(call.bytes);
  }
}

}  // namespace

ShardedGraph::ShardedGraph(const trace::TracedModule& traced, const plan::Plan& plan, comm::Mesh& mesh,
                           std::vector<ParameterShare> parameters)
    : traced_(traced),
      plan_(plan),
      groups_(groups_of(plan.mesh, mesh)),
      parameters_(std::move(parameters)),
      statistics_(traced.graph.nodes.size(), nullptr) {
  const plan::Graph& graph = traced.graph;
  const auto planned = by_reader(plan);
  for (int node = 0; node < static_cast<int>(graph.nodes.size()); ++node) {
    shares_.push_back(share_of(graph, node, plan.strategies[node], plan.mesh));
    std::vector<BlockConversion>& conversions = conversions_.emplace_back(graph.operands[node].size());
    for (size_t i = 0; i < conversions.size(); ++i) {
      const auto found = planned.find({node, static_cast<int>(i)});
      if (found == planned.end()) continue;
      const plan::PlannedConversion& c = *found->second;
      conversions[i] = {plan.strategies[c.from].output, plan.strategies[node].operands[i], c.forward, c.backward,
                        &groups_};
    }
  }
  for (const trace::TracedModule::Statistics& s : traced.statistics) statistics_[s.node] = &s;
  runners_ = running_nodes(traced, plan);
  for (const int runner : runners_) is_shared_.push_back(std::count(runners_.begin(), runners_.end(), runner) > 1);
}

at::Tensor ShardedGraph::input_block(int node, const std::vector<at::Tensor>& inputs) const {
  const auto index = static_cast<size_t>(traced_.operators[node].input);
  const plan::Node& traced = traced_.graph.nodes[node];
  require(index < inputs.size(), "auto_parallel", "backward() needs as many inputs as were traced: got ", inputs.size(),
          ", needs at least ", index + 1);
  const plan::Spec& spec = plan_.strategies[node].output;
  const std::vector<int64_t> wanted = block_shape(traced.output.shape, spec, groups_.mesh);
  const at::Tensor& input = inputs[index];
  require(input.sizes() == at::IntArrayRef(wanted), "auto_parallel",
          "an input must have the shape that was traced: got ", plan::print_shape(input.sizes().vec()), " for input ",
          index, " (", traced.name, "), traced ", plan::print_shape(traced.output.shape),
          wanted == traced.output.shape ? "" : concat(", of which a rank has ", plan::print_shape(wanted)),
          "; pass this replica's rows of a micro-batch, or make the training with an example of the new shape");
  const std::string dtype = trace::type_of(input).dtype;
  require(dtype == traced.output.dtype, "auto_parallel", "an input must have the dtype that was traced: got ", dtype,
          " for input ", index, " (", traced.name, "), traced ", traced.output.dtype, "; convert it");
  return input;
}

std::vector<at::Tensor> ShardedGraph::operands_of(int node, const std::vector<at::Tensor>& values,
                                                  const std::vector<at::Tensor>& parameters) const {
  std::vector<at::Tensor> operands;
  const std::vector<plan::Source>& sources = traced_.graph.operands[node];
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].is_parameter) {
      const at::Tensor& block = parameters[sources[i].index];
      const bool has_gradient = traced_.graph.parameters[sources[i].index].trains;
      const double factor =
          gradient_factor(shares_[node].gradients[i], parameters_[sources[i].index].gradient_axes, plan_.mesh);
      at::Tensor operand = has_gradient ? with_scaled_gradient(block, factor) : block;
      if (i == 0 && shares_[node].gathered.axis >= 0)
        operand = comm::all_gather(operand, shares_[node].gathered.dim, *groups_.axes[shares_[node].gathered.axis]);
      operands.push_back(std::move(operand));
      continue;
    }
    at::Tensor operand = values[sources[i].index];
    const BlockConversion& conversion = conversions_[node][i];
    if (conversion.from != conversion.to) operand = converted(operand, conversion);
    operands.push_back(read_block(shares_[node], i, std::move(operand), groups_));
  }
  return operands;
}

at::Tensor ShardedGraph::result_of(int node, const std::vector<at::Tensor>& values,
                                   const std::vector<at::Tensor>& parameters, uint64_t seed,
                                   SharedResults& shared) const {
  const trace::TracedOperator& op = traced_.operators[node];
  if (!is_shared_[node]) {
    const uint64_t own = derive_seed(seed, traced_.graph.nodes[node].name);
    return run_on_blocks(
        {traced_.graph, node, op, plan_.strategies[node], shares_[node], groups_, own, statistics_[node]},
        operands_of(node, values, parameters));
  }
  // No operator of several results needs the adaptations of run_on_blocks(): none has partial sums or sizes of blocks.
  std::vector<at::Tensor>& results = shared[runners_[node]];
  if (results.empty()) results = trace::run_operator(op, operands_of(runners_[node], values, parameters));
  return std::exchange(results.at(static_cast<size_t>(op.result)), at::Tensor());
}

void ShardedGraph::release_read(int node, std::vector<at::Tensor>& values, std::vector<int>& readers) const {
  std::set<int> read;
  for (const plan::Source source : traced_.graph.operands[node])
    if (!source.is_parameter) read.insert(source.index);
  for (const int source : read)
    if (--readers[source] == 0) values[source] = at::Tensor();
}

at::Tensor ShardedGraph::run(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& parameters,
                             uint64_t seed) {
  const plan::Graph& graph = traced_.graph;
  std::vector<at::Tensor> values(graph.nodes.size());
  std::vector<int> readers;
  SharedResults shared;
  for (const auto& consumers : graph.consumers)
    readers.push_back(static_cast<int>(std::set<int>(consumers.begin(), consumers.end()).size()));
  for (int node = 0; node < static_cast<int>(graph.nodes.size()); ++node) {
    const trace::TracedOperator& op = traced_.operators[node];
    if (op.input >= 0) {
      values[node] = input_block(node, inputs);
    } else if (!op.handle) {
      values[node] = op.constant;
    } else {
      values[node] = result_of(node, values, parameters, seed, shared);
      release_read(node, values, readers);
    }
  }
  return values.back();
}

std::vector<int> running_nodes(const trace::TracedModule& traced, const plan::Plan& plan) {
  std::map<std::pair<int, std::string>, int> by_call;  // call and strategy
  const auto key = [&](int node) { return std::pair(traced.operators[node].call, plan.strategies[node].name); };
  std::vector<int> runners(traced.operators.size());
  std::iota(runners.begin(), runners.end(), 0);
  for (const int node : runners) {
    if (traced.operators[node].call < 0) continue;
    int& runner = by_call.try_emplace(key(node), node).first->second;
    if (!traced.graph.needs_gradient[runner] && traced.graph.needs_gradient[node]) runner = node;
  }
  for (int& node : runners)
    if (traced.operators[node].call >= 0) node = by_call.at(key(node));
  return runners;
}

std::map<comm::Traffic::Key, comm::Traffic::Count> predicted_traffic(const trace::TracedModule& traced,
                                                                     const plan::Plan& plan) {
  std::set<std::string> gradients;
  for (const plan::Parameter& parameter : traced.graph.parameters) gradients.insert(parameter.name + " gradient");
  const std::vector<int> runners = running_nodes(traced, plan);
  const auto runs = [&](int node) { return runners[node] == node; };
  std::map<comm::Traffic::Key, comm::Traffic::Count> traffic;
  for (size_t node = 0; node < runners.size(); ++node)
    if (runs(static_cast<int>(node))) count_calls(traffic, plan.strategies[node].calls, plan.mesh, false, gradients);
  for (const plan::PlannedConversion& conversion : plan.conversions) {
    if (!runs(conversion.to)) continue;
    count_calls(traffic, conversion.forward.calls, plan.mesh, false, {});
    count_calls(traffic, conversion.backward.calls, plan.mesh, true, {});
  }
  return traffic;
}

}  // namespace colossal::auto_parallel
