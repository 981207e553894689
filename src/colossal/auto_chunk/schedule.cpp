#include "colossal/auto_chunk/schedule.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/trace/heard_call.h"

namespace colossal::auto_chunk {
namespace {

/// Operators that give the same numbers in place.
bool has_form_in_place(const trace::TracedOperator& run) {
  static const std::set<std::string> names{
      "aten::add.Tensor", "aten::sub.Tensor", "aten::mul.Tensor", "aten::div.Tensor", "aten::relu",
      "aten::sigmoid",    "aten::tanh",       "aten::exp",        "aten::neg",        "aten::clamp_min",
      "aten::clamp",      "aten::gelu",       "aten::silu",       "aten::sqrt",       "aten::rsqrt"};
  return run.handle && run.places.size() > 0 && run.places[0].argument == 0 &&
         names.count(trace::full_name(*run.handle)) > 0;
}

/// Names of dimensions go from operands to results along equal indices.
std::vector<std::string> names_of_dims(const ChunkGraph& graph, int node) {
  std::vector<std::string> names(graph.node(node).output.shape.size());
  const NodeDims& dims = graph.dims[node];
  for (size_t dim = 0; dim < names.size(); ++dim) {
    if (dims.output[dim] < 0) continue;
    for (size_t k = 0; k < graph.operands(node) && names[dim].empty(); ++k) {
      const int from = graph.cut_of_operand(node, k, static_cast<int>(dim)), source = graph.operand(node, k);
      if (from >= 0 && source >= 0) names[dim] = graph.dim_names[source][from];
    }
  }
  return names;
}

std::string joined_prefix(const std::string& a, const std::string& b) {
  size_t end = 0;
  for (size_t i = 0; i <= a.size() && i <= b.size(); ++i) {
    const bool ends = (i == a.size() || a[i] == '.') && (i == b.size() || b[i] == '.');
    if (ends) end = i;
    if (i == a.size() || i == b.size() || a[i] != b[i]) break;
  }
  return a.substr(0, end);
}

}  // namespace

ChunkGraph::ChunkGraph(const trace::TracedModule& of, ChunkOptions given)
    : traced(of), options(std::move(given)), memory(of) {
  const int count = static_cast<int>(traced.graph.nodes.size());
  is_output.assign(count, false);
  for (const plan::Source output : traced.outputs) is_output[output.index] = true;
  size_t inputs = 0;
  for (int i = 0; i < count; ++i) {
    const trace::TracedOperator& run = traced.operators[i];
    dims.push_back(free_dims(traced, i));
    bytes.push_back(node(i).output.bytes());
    writes_over.push_back(has_form_in_place(run));
    const auto index = static_cast<size_t>(std::max(run.input, 0));
    is_fixed.push_back(run.input >= 0 ? index >= options.overwritten.size() || !options.overwritten[index]
                                      : !run.handle && !run.whole);
    dim_names.emplace_back(node(i).output.shape.size());
    if (run.input >= 0) {
      inputs = std::max(inputs, index + 1);
      if (index < options.dims.size() && !options.dims[index].empty()) dim_names[i] = options.dims[index];
      require(dim_names[i].size() == node(i).output.shape.size(), "auto_chunk",
              "an input must have a name for each of ", node(i).output.shape.size(), " dimensions: got ",
              dim_names[i].size());
    } else {
      dim_names[i] = names_of_dims(*this, i);
    }
  }
  require(options.overwritten.size() <= inputs && options.dims.size() <= inputs, "auto_chunk",
          "flags and names must be of inputs: got ", options.overwritten.size(), " and ", options.dims.size(), " for ",
          inputs);
}

int ChunkGraph::cut_of_operand(int index, size_t which, int cut) const {
  const int of_output = dims[index].output[cut];
  if (of_output < 0) return -1;
  const std::vector<int>& operand = dims[index].operands[which];
  const auto found = std::find(operand.begin(), operand.end(), of_output);
  return found == operand.end() ? -1 : static_cast<int>(found - operand.begin());
}

Schedule plain_schedule(const ChunkGraph& graph) {
  Schedule schedule;
  for (int i = 0; i < static_cast<int>(graph.traced.graph.nodes.size()); ++i) schedule.steps.push_back({.node = i});
  return schedule;
}

void cut_out(Schedule& schedule, const Loop& loop) {
  const std::set<int> taken(loop.nodes.begin(), loop.nodes.end());
  std::vector<Step> steps;
  size_t end = 0;  // behind the last node of the loop
  for (size_t i = 0; i < schedule.steps.size(); ++i)
    if (taken.count(schedule.steps[i].node) > 0) end = i + 1;
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const int node = schedule.steps[i].node;
    if (i == end) steps.push_back({.loop = static_cast<int>(schedule.loops.size())});
    if (taken.count(node) == 0 || loop.repeated.count(node) > 0) steps.push_back(schedule.steps[i]);
  }
  if (end == schedule.steps.size()) steps.push_back({.loop = static_cast<int>(schedule.loops.size())});
  schedule.steps = std::move(steps);
  schedule.loops.push_back(loop);
}

std::vector<int> read_by(const ChunkGraph& graph, const Schedule& schedule, const Step& step) {
  std::set<int> read;
  const auto add = [&](int node, const std::map<int, int>* inside) {
    for (size_t k = 0; k < graph.operands(node); ++k) {
      const int source = graph.operand(node, k);
      if (source >= 0 && (inside == nullptr || inside->count(source) == 0)) read.insert(source);
    }
  };
  if (step.node >= 0) {
    add(step.node, nullptr);
  } else {
    const Loop& loop = schedule.loops[step.loop];
    for (const int node : loop.nodes) add(node, &loop.cut);
  }
  return {read.begin(), read.end()};
}

std::vector<int> results_of(const ChunkGraph& graph, const Schedule& schedule, int loop) {
  const Loop& own = schedule.loops[loop];
  std::set<int> wanted;
  for (const int node : own.nodes)
    if (graph.is_output[node]) wanted.insert(node);
  for (const Step& step : schedule.steps) {
    if (step.loop == loop) continue;
    for (const int node : read_by(graph, schedule, step)) wanted.insert(node);
  }
  std::vector<int> results;
  for (const int node : own.nodes)
    if (wanted.count(node) > 0 && own.repeated.count(node) == 0) results.push_back(node);
  return results;
}

namespace {

/// Says what is wrong with a loop of a plan, or "".
std::string fault_of(const ChunkGraph& graph, const Schedule& schedule, const Loop& loop) {
  std::set<int> open;
  for (const Step& step : schedule.steps) open.insert(step.node);
  for (const int node : loop.nodes) {
    const std::string name = graph.node(node).name;
    const int cut = loop.cut.at(node);
    const auto& shape = graph.node(node).output.shape;
    if (open.count(node) == 0) return name + " is in two loops";
    if (cut < 0 || cut >= static_cast<int>(shape.size()) || graph.dims[node].output[cut] < 0)
      return name + " cannot be cut along dimension " + std::to_string(cut);
    if (shape[cut] != loop.extent) return name + " has another size than the first operator of the loop";
    for (size_t k = 0; k < graph.operands(node); ++k) {
      const auto inside = loop.cut.find(graph.operand(node, k));
      if (inside != loop.cut.end() && graph.cut_of_operand(node, k, cut) != inside->second)
        return name + " reads " + graph.node(inside->first).name + " whole";
    }
  }
  return "";
}

std::string order_fault(const ChunkGraph& graph, const Schedule& schedule) {
  std::set<int> made;
  for (const Step& step : schedule.steps) {
    for (const int node : read_by(graph, schedule, step))
      if (made.count(node) == 0) return graph.node(node).name + " is read before it is made";
    if (step.node >= 0) made.insert(step.node);
    if (step.loop >= 0)
      for (const int node : schedule.loops[step.loop].nodes) made.insert(node);
  }
  return "";
}

}  // namespace

Schedule schedule_of(const ChunkGraph& graph, const ChunkPlan& plan) {
  Schedule schedule = plain_schedule(graph);
  for (const ChunkRegion& region : plan.regions) {
    require(!region.nodes.empty() && region.nodes.size() == region.cuts.size() && region.size > 0, "chunks", "region ",
            region.region, " must have nodes, a cut of each, and a size: got ", region.nodes.size(), ", ",
            region.cuts.size(), " and ", region.size);
    Loop loop{.size = region.size, .name = region.region, .dim = region.dim};
    for (size_t i = 0; i < region.nodes.size(); ++i) {
      const int node = graph.traced.graph.index_of(region.nodes[i]);
      loop.nodes.push_back(node);
      loop.cut[node] = static_cast<int>(region.cuts[i]);
    }
    for (const std::string& name : region.repeated) loop.repeated.insert(graph.traced.graph.index_of(name));
    std::sort(loop.nodes.begin(), loop.nodes.end());
    const auto& shape = graph.node(loop.nodes[0]).output.shape;
    const int cut = loop.cut.at(loop.nodes[0]);
    loop.extent = cut >= 0 && cut < static_cast<int>(shape.size()) ? shape[cut] : 0;
    std::string fault = fault_of(graph, schedule, loop);
    if (fault.empty()) {
      cut_out(schedule, loop);
      fault = order_fault(graph, schedule);
    }
    require(fault.empty(), "chunks", "region ", region.region, ": ", fault, "; plan the pass again");
  }
  return schedule;
}

ChunkRegion region_of(const ChunkGraph& graph, const Loop& loop) {
  ChunkRegion region{.region = loop.name, .dim = loop.dim, .size = loop.size};
  for (const int node : loop.nodes) {
    region.nodes.push_back(graph.node(node).name);
    region.cuts.push_back(loop.cut.at(node));
    if (loop.repeated.count(node) > 0) region.repeated.push_back(graph.node(node).name);
  }
  if (!region.region.empty()) return region;
  bool first = true;
  for (const int node : loop.nodes)
    for (const plan::Source source : graph.traced.graph.operands[node]) {
      if (!source.is_parameter) continue;
      const std::string& name = graph.traced.graph.parameters[source.index].name;
      region.region =
          first ? name.substr(0, std::min(name.rfind('.'), name.size())) : joined_prefix(region.region, name);
      first = false;
    }
  if (region.region.empty()) region.region = graph.node(loop.nodes.front()).name;
  const int last = loop.nodes.back();
  region.dim = graph.dim_names[last][loop.cut.at(last)];
  if (region.dim.empty()) region.dim = std::to_string(loop.cut.at(last));
  return region;
}

}  // namespace colossal::auto_chunk
