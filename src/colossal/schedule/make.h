// From a name and sizes to a schedule. A family is a header and a source of its own and a row of the table in make.cpp.
#pragma once
#include <string>
#include <vector>

#include "colossal/schedule/schedule.h"

namespace colossal::schedule {

/// What steps cost, in any one unit of time. A stage here is all that a rank holds: a chunk costs its part of it
/// (cost_of).
struct Costs {
  double forward = 1, backward_input = 1, backward_weight = 1, transfer = 0;
  std::vector<double> stage_weights;  ///< relative size of each stage of the chain, in order; empty: all 1
  /// Relative cost of forward in each stage, if it differs from stage_weights: a loss head computes its gradients in
  /// forward; empty = stage_weights
  std::vector<double> forward_weights{};
  bool operator==(const Costs&) const = default;
};

struct Options {
  std::string name;       ///< of a family
  int stages = 1;         ///< ranks of the pipeline
  int micro_batches = 1;  ///< of one step
  int chunks = 0;         ///< stages that a rank holds; 0: the family's default
  Costs costs;            ///< what the searched families (zero bubble, V, Hanayo, Chimera) plan with
  /// Live activations that a rank may hold, one being a micro-batch on all its chunks; 0: the family's own
  double memory_limit = 0;
};

struct Family {
  const char* name;
  const char* description;  ///< a few words
  int default_chunks;
  bool takes_chunks;     ///< other numbers than the default are legal
  bool splits_backward;  ///< into BackwardInput and BackwardWeight
  /// Nothing, or what is wrong: rule, value and nearest legal values. `chunks` is filled in, sizes are positive.
  std::string (*fault)(const Options& options);
  Placement (*placement)(const Options& options);
  /// The compute steps of every rank, without transfers. For options without a fault.
  Lists (*order)(const Options& options, const Placement& placement);
};

/// In the order of their age.
const std::vector<Family>& families();

/// Errors ("pipeline"): no family of that name, with the nearest one.
const Family& find_family(const std::string& name);

/// The duration of a compute step: its stage's weight times the action's cost, over the stages of the pipe that a rank
/// holds. Other steps: 0.
double cost_of(const Costs& costs, const Placement& placement, int rank, const Step& step);

/// Where the stages lie: how many there are is what a model must have blocks for. Errors: those of check_options.
Placement placement_of(const Options& options);

/// Errors ("pipeline"): unknown name; sizes below 1; what the family cannot do, with the nearest legal values; costs
///                      that are no durations.
void check_options(const Options& options);

/// Returns the whole schedule: compute steps, transfers, Reduce, Update. It passes check().
///
/// The result is the same on every rank: it depends on the arguments alone, not on time or chance.
/// Errors:  those of check_options.
/// Cost:    a few ms; the searched families below 1 s for 16 ranks and 128 micro-batches.
Schedule make_schedule(const Options& options);

}  // namespace colossal::schedule
