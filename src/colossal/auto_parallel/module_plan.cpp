#include "colossal/auto_parallel/module_plan.h"

#include <cstdio>
#include <filesystem>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/comm/agreement.h"
#include "colossal/plan/cluster.h"
#include "colossal/plan/plan_file.h"
#include "colossal/train/rank_inputs.h"

namespace colossal::auto_parallel {
namespace {

plan::Cluster named_cluster(const std::string& name) {
  if (name != "this") return plan::Cluster(plan::find_profile(name));
  const std::string path = plan::stored_profile_path();
  require(std::filesystem::exists(path), "auto_parallel", "this machine has no profile at ", path,
          "; run `colossal plan --calibrate`, or name another cluster in the options");
  return plan::Cluster(plan::load_profile(path));
}

plan::Mesh mesh_of(int64_t data, int64_t tensor) { return {{{"data", data}, {"tensor", tensor}}}; }

/// Returns the meshes that the plan may have: that of the config, or every factorisation of the ranks.
std::vector<plan::Mesh> meshes_for(const run::Config& config, int64_t ranks) {
  if (!config.parallel.automatic) return {mesh_of(config.parallel.data, config.parallel.tensor.size)};
  std::vector<plan::Mesh> meshes;
  for (int64_t data = ranks; data >= 1; --data)
    if (ranks % data == 0) meshes.push_back(mesh_of(data, ranks / data));
  return meshes;
}

plan::SolverOptions solver_options(const AutoOptions& options) {
  return {.memory = options.memory, .annotate = options.annotate, .share_blocks = options.share_blocks};
}

/// Returns the fastest plan over all meshes. A mesh that has none, for instance because its data axis does not divide
/// the rows, is left out; if all are, the error is that of the first.
plan::Plan fastest_plan(const plan::Graph& graph, const std::vector<plan::Mesh>& meshes, const plan::Cluster& cluster,
                        const AutoOptions& options) {
  std::optional<plan::Plan> best;
  std::optional<Error> first;
  for (const plan::Mesh& mesh : meshes) {
    try {
      plan::Plan found = plan::solve(graph, mesh, plan::links_of(cluster, mesh), solver_options(options));
      if (!best || found.seconds < best->seconds) best = std::move(found);
    } catch (const Error& error) {
      if (!first) first = error;
    }
  }
  if (!best) throw *first;
  return *best;
}

/// Requires that the axes of a plan file have the sizes of the run's mesh.
void check_mesh(const plan::Mesh& found, const plan::Mesh& wanted, const std::string& path) {
  const auto size_of = [](const plan::Mesh& mesh, const std::string& name) {
    const int axis = mesh.find(name);
    return axis < 0 ? int64_t{1} : mesh.axes[axis].size;
  };
  for (const plan::Axis& axis : wanted.axes)
    require(size_of(found, axis.name) == axis.size, "auto_parallel", "the plan in ", path,
            " must be of the run's mesh: axis ", axis.name, " is ", size_of(found, axis.name), " there and ", axis.size,
            " in the run; set parallel.", axis.name, " to ", size_of(found, axis.name), " or make a plan for ",
            plan::print_mesh(wanted));
}

plan::Plan loaded_plan(const plan::Graph& graph, const run::Config& config, const plan::Cluster& cluster) {
  const std::string& path = config.parallel.plan;
  const plan::PlanFile file = plan::read_plan(path, graph);
  const plan::Mesh mesh = mesh_of(config.parallel.data, config.parallel.tensor.size);
  check_mesh(file.mesh, mesh, path);
  return plan::price_plan(graph, mesh, plan::links_of(cluster, mesh), file.strategies);
}

void mark_whole_inputs(trace::TracedModule& traced, const AutoOptions& options, size_t inputs) {
  for (const int64_t input : options.whole_inputs)
    require(input >= 0 && input < static_cast<int64_t>(inputs), "auto_parallel",
            "options.whole_inputs must be indices of inputs: got ", input, " of ", inputs);
  for (size_t node = 0; node < traced.operators.size(); ++node)
    for (const int64_t input : options.whole_inputs)
      if (traced.operators[node].input == input) traced.graph.nodes[node].whole = true;
}

void write_files(const ModulePlan& planned, const std::string& folder) {
  std::filesystem::create_directories(folder);
  plan::write_graph(planned.traced.graph, folder + "/graph.json");
  plan::write_plan(planned.plan, planned.traced.graph, folder + "/plan.json");
}

}  // namespace

run::Config config_on(const run::Config& config, const plan::Mesh& mesh) {
  run::Config made = config;
  made.parallel.data = mesh.axes[mesh.find("data")].size;
  made.parallel.tensor.size = mesh.axes[mesh.find("tensor")].size;
  made.parallel.plan.clear();
  made.parallel.automatic = false;
  made.parallel.ranks_wanted = 0;
  return made;
}

ModulePlan plan_module(comm::Group& everyone, torch::nn::Module& module, const trace::Loss& loss,
                       const std::vector<at::Tensor>& inputs, const run::Config& config, const AutoOptions& options) {
  ModulePlan planned;
  comm::agree(everyone, at::kCPU, [&] {
    planned.traced = trace::trace_loss(module, loss, inputs);
    mark_whole_inputs(planned.traced, options, inputs.size());
  });
  const plan::Graph& graph = planned.traced.graph;
  train::require_same(everyone, {"auto_parallel",
                                 {{"graph", plan::print_graph(graph)}},
                                 "every rank must pass the same module, loss and shapes of inputs"});
  const plan::Cluster cluster = named_cluster(options.cluster);
  std::string text;
  comm::agree(everyone, at::kCPU, [&] {
    if (everyone.rank() != 0) return;
    planned.plan = config.parallel.plan.empty()
                       ? fastest_plan(graph, meshes_for(config, everyone.size()), cluster, options)
                       : loaded_plan(graph, config, cluster);
    text = plan::print_plan(planned.plan, graph);
    for (const std::string& warning : planned.traced.warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
    write_files(planned, config.run.folder);
  });
  text = comm::broadcast_text(everyone, at::kCPU, 0, text);
  if (everyone.rank() != 0) {
    const plan::PlanFile file = plan::parse_plan(text, "the plan of rank 0", graph);
    const auto size = [&](const char* axis) {
      return file.mesh.find(axis) < 0 ? int64_t{1} : file.mesh.axes[file.mesh.find(axis)].size;
    };
    const plan::Mesh mesh = mesh_of(size("data"), size("tensor"));
    planned.plan = plan::price_plan(graph, mesh, plan::links_of(cluster, mesh), file.strategies);
  }
  return planned;
}

}  // namespace colossal::auto_parallel
