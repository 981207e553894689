#include "colossal/auto_chunk/run.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>

#include "colossal/auto_chunk/operator_memory.h"
#include "colossal/auto_chunk/timeline.h"
#include "colossal/base/error.h"
#include "colossal/trace/graph_recorder.h"
#include "colossal/trace/heard_call.h"

namespace colossal::auto_chunk {
namespace {

/// A part of the dimension that a loop cuts.
struct Block {
  int64_t first = 0, count = 0;
};

/// Runs the operator over its first operand.
at::Tensor run_in_place(const trace::TracedOperator& run, const std::vector<at::Tensor>& operands) {
  std::string name = trace::full_name(*run.handle);
  name.insert(std::min(name.find('.'), name.size()), "_");
  trace::TracedOperator over = run;
  over.handle = trace::operator_named(name);
  trace::run_operator(over, operands);
  return operands[0];
}

/// Runs the operator. A result that the trace takes for memory of its own is: with other strides than traced, a
/// reshaped tensor could be a view, and what later takes its memory would change what it is a view of.
std::vector<at::Tensor> run_apart(const trace::TracedOperator& run, const std::vector<at::Tensor>& operands) {
  std::vector<at::Tensor> results = trace::run_operator(run, operands);
  if (run.shares < 0)
    for (at::Tensor& result : results)
      for (const at::Tensor& operand : operands)
        if (result.is_alias_of(operand)) result = result.clone();
  return results;
}

class Runner {
 public:
  Runner(const ChunkGraph& graph, const Schedule& schedule, std::vector<at::Tensor> inputs)
      : graph_(graph),
        schedule_(schedule),
        timeline_(timeline_of(graph, schedule)),
        inputs_(std::move(inputs)),
        values_(graph.bytes.size()) {}

  std::vector<at::Tensor> run() {
    for (size_t i = 0; i < schedule_.steps.size(); ++i) {
      const Step& step = schedule_.steps[i];
      if (step.node >= 0)
        values_[step.node] = value_of(step.node, timeline_.overwrites[i]);
      else
        run_loop(schedule_.loops[step.loop], timeline_.loops[step.loop]);
      for (const int node : timeline_.freed[i]) values_[node] = at::Tensor();
    }
    std::vector<at::Tensor> outputs;
    for (const plan::Source output : graph_.traced.outputs) outputs.push_back(values_[output.index]);
    return outputs;
  }

 private:
  at::Tensor value_of(int node, bool overwrites) {
    const trace::TracedOperator& run = graph_.traced.operators[node];
    if (run.input >= 0) return std::move(inputs_[run.input]);
    if (!run.handle && !run.whole) return run.constant;
    if (shared_call_ == run.call && !shared_.empty()) return shared_.at(run.result);
    std::vector<at::Tensor> operands;
    for (const plan::Source source : graph_.traced.graph.operands[node])
      operands.push_back(source.is_parameter ? graph_.traced.parameters[source.index] : values_[source.index]);
    if (overwrites) return run_in_place(run, operands);
    std::vector<at::Tensor> results = run_apart(run, operands);
    const bool has_more = results.size() > 1;
    const at::Tensor result = results.at(run.result);
    shared_call_ = run.call;
    shared_ = has_more ? std::move(results) : std::vector<at::Tensor>();
    return result;
  }

  void run_loop(const Loop& loop, const BlockTimeline& timeline) {
    for (const int node : timeline.results) {
      const auto over = timeline.over.find(node);
      if (over != timeline.over.end()) values_[node] = values_[over->second];
    }
    for (Block block; block.first < loop.extent; block.first += loop.size) {
      block.count = std::min(loop.size, loop.extent - block.first);
      run_block(loop, timeline, block);
    }
  }

  void run_block(const Loop& loop, const BlockTimeline& timeline, Block block) {
    std::map<int, at::Tensor> own;
    for (size_t i = 0; i < loop.nodes.size(); ++i) {
      const int node = loop.nodes[i], cut = loop.cut.at(node);
      const trace::TracedOperator& run = graph_.traced.operators[node];
      std::vector<at::Tensor> operands;
      for (size_t k = 0; k < graph_.operands(node); ++k) operands.push_back(operand(node, k, cut, own, block));
      if (timeline.overwrites[i])
        own[node] = run_in_place(run, operands);
      else if (run.whole)
        own[node] = run_apart(run, operands)[0];
      else
        own[node] = run_apart(sized(run, graph_.node(node).output.shape, cut, block.count), operands)[0];
      operands.clear();
      for (const int freed : timeline.freed[i]) own.erase(freed);
    }
    for (const int node : timeline.results) {
      const int cut = loop.cut.at(node);
      const at::Tensor& made = own.at(node);
      if (!values_[node].defined()) values_[node] = at::empty(graph_.node(node).output.shape, made.options());
      values_[node].narrow(cut, block.first, block.count).copy_(made);
    }
  }

  /// Returns a block of an operand, or all of it if the operator needs that.
  at::Tensor operand(int node, size_t which, int cut, const std::map<int, at::Tensor>& own, Block block) const {
    const plan::Source source = graph_.traced.graph.operands[node][which];
    if (!source.is_parameter) {
      const auto found = own.find(source.index);
      if (found != own.end()) return found->second;
    }
    const at::Tensor& whole = source.is_parameter ? graph_.traced.parameters[source.index] : values_[source.index];
    const int dim = graph_.cut_of_operand(node, which, cut);
    return dim < 0 ? whole : whole.narrow(dim, block.first, block.count);
  }

  const ChunkGraph& graph_;
  const Schedule& schedule_;
  const Timeline timeline_;
  std::vector<at::Tensor> inputs_, values_;
  int shared_call_ = -1;
  std::vector<at::Tensor> shared_;  ///< of the last call, if it has several results
};

}  // namespace

std::vector<at::Tensor> run(const ChunkGraph& graph, const Schedule& schedule, std::vector<at::Tensor> inputs) {
  size_t wanted = 0;
  for (int i = 0; i < static_cast<int>(graph.bytes.size()); ++i) {
    const int input = graph.traced.operators[i].input;
    if (input < 0) continue;
    ++wanted;
    require(input < static_cast<int>(inputs.size()), "auto_chunk",
            "the pass must get the inputs it was traced with: got ", inputs.size());
    const plan::TensorType given = trace::type_of(inputs[input]), &traced = graph.node(i).output;
    require(given == traced, "auto_chunk", "input ", input, " must be ", plan::print_shape(traced.shape), " of ",
            traced.dtype, " as traced: got ", plan::print_shape(given.shape), " of ", given.dtype);
  }
  require(inputs.size() == wanted, "auto_chunk", "the pass must get the ", wanted, " inputs it was traced with: got ",
          inputs.size());
  const at::NoGradGuard no_grad;
  return Runner(graph, schedule, std::move(inputs)).run();
}

}  // namespace colossal::auto_chunk
