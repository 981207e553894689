// Makes a schedule from a name and sizes. A family has its own source, a line of families.h and a row of the table
// in make.cpp.
#pragma once
#include <string>
#include <vector>

#include "colossal/schedule/schedule.h"

namespace colossal::schedule {

/// Costs of the steps, in any one unit of time. They are the costs of one micro-batch on all stages of a rank together;
/// a chunk costs its share (cost_of).
struct Costs {
  double forward = 1, backward_input = 1, backward_weight = 1, transfer = 0;
  std::vector<double> stage_weights;  ///< relative size of each stage of the chain, in order; empty = all 1
  /// relative cost of forward in each stage, if it differs from stage_weights, e.g. because a loss head computes its
  /// gradients in forward; empty = stage_weights
  std::vector<double> forward_weights{};
  bool operator==(const Costs&) const = default;
};

struct Options {
  std::string name;       ///< name of a family
  int stages = 1;         ///< number of ranks of the pipeline
  int micro_batches = 1;  ///< number of micro-batches of one step
  int chunks = 0;         ///< number of stages per rank; 0 = the family's default
  Costs costs;            ///< costs that the searched families (zero bubble, V, Hanayo, Chimera) plan with
  /// maximum number of live activations of a rank, one being a micro-batch on all its chunks; 0 = the family's own
  /// limit
  double memory_limit = 0;
};

struct Family {
  const char* name;
  const char* description;  ///< description in a few words
  int default_chunks;
  bool takes_chunks;     ///< true if `chunks` may differ from the default
  bool splits_backward;  ///< true if backward is split into BackwardInput and BackwardWeight
  /// Returns an empty string, or the error: rule, value and nearest legal values. `chunks` is filled in, sizes are
  /// positive. null = no further rules.
  std::string (*fault)(const Options& options);
  Placement (*placement)(const Options& options);
  /// Returns the compute steps of every rank, without transfers. The options must have no fault.
  Lists (*order)(const Options& options, const Placement& placement);

  /// Calls `fault` if there is one.
  std::string fault_of(const Options& options) const { return fault ? fault(options) : std::string(); }
};

/// Returns all families, roughly from the oldest to the newest.
const std::vector<Family>& families();

/// Returns the family of that name. Errors ("pipeline"): an unknown name; the message suggests the nearest one.
const Family& find_family(const std::string& name);

/// Returns the duration of a compute step: its stage's weight times the action's cost, divided by the stages of the
/// pipe that a rank holds. Returns 0 for other steps.
double cost_of(const Costs& costs, const Placement& placement, int rank, const PipelineOp& step);

/// Returns the placement of the stages. A model needs at least as many blocks as there are stages. Errors: as
/// check_options().
Placement placement_of(const Options& options);

/// Checks the options. Errors ("pipeline"): an unknown name; sizes below 1; a memory_limit that is below 1 and not 0;
/// options that the family does not support, with the nearest legal values; costs of steps or stage weights that are
/// not positive and finite; a negative or infinite cost of transfers; a number of stage weights other than the number
/// of stages.
void check_options(const Options& options);

/// Returns the whole schedule: compute steps, transfers, Reduce, Update. It passes check().
///
/// The result is the same on every rank: it depends only on the arguments, not on time or chance.
/// Errors:  as check_options().
/// Cost:    a few ms; the searched families below 1 s for 16 ranks and 128 micro-batches.
Schedule make_schedule(const Options& options);

}  // namespace colossal::schedule
