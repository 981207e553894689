// The trace of a module and its plan, the same on all ranks.
//
//   const ModulePlan planned = plan_module(*everyone, *net, loss, inputs, config, {});
//   plan::write_plan(planned.plan, planned.traced.graph, config.run.folder + "/again.json");
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "colossal/auto_parallel/training.h"
#include "colossal/comm/group.h"
#include "colossal/plan/solver.h"
#include "colossal/run/config.h"
#include "colossal/trace/trace.h"

namespace colossal::auto_parallel {

/// A traced module with a plan of its graph. The mesh of the plan has the axes `data` and `tensor`.
struct ModulePlan {
  trace::TracedModule traced;
  plan::Plan plan;
};

/// Traces the module on every rank. Rank 0 finds the plan, or reads the one that parallel.plan names, and sends it.
/// With [parallel] auto it tries every mesh of the ranks and takes the fastest plan. Rank 0 prints the warnings of the
/// trace, and writes graph.json and plan.json into run.folder.
///
/// Communication: one agreement for each of these steps; a comparison of the graphs; a broadcast of the plan.
/// Errors, the same on all ranks: those of trace() and plan::solve(); graphs that differ between ranks; a plan file of
///         another graph or mesh, with the first node or axis that differs, or with a strategy that a node does not
///         have, with the legal ones.
ModulePlan plan_module(comm::Group& everyone, torch::nn::Module& module, const trace::Loss& loss,
                       const std::vector<at::Tensor>& inputs, const run::Config& config, const AutoOptions& options);

/// Returns the config of a run on the mesh: the sizes of data and tensor are those of the mesh, auto and plan are
/// cleared.
run::Config config_on(const run::Config& config, const plan::Mesh& mesh);

}  // namespace colossal::auto_parallel
