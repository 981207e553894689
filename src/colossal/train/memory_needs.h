// The memory that a training run needs, computed before any of it is allocated.
//
//   const auto needs = train::memory_needs({config, shape}, world.rank());
//   log.info("memory of this rank: ", train::to_string(needs));   // "parameters 3.1 MiB, ..., states 6.2 MiB (device)"
//
//   train::check_memory({config, shape}, at::kCPU, world.local_size());     // refuses what cannot fit
#pragma once
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "colossal/models/model.h"
#include "colossal/nn/parameter.h"
#include "colossal/plan/prediction.h"
#include "colossal/train/run_models.h"

namespace colossal::train {

/// MemoryNeed::what of parameters that do not train.
inline constexpr char kFrozenParameters[] = "frozen parameters";

/// Memory of one kind, of one model.
struct MemoryNeed {
  std::string model;  ///< name of the model; empty = the main model
  /// kFrozenParameters, "parameters" (those that train), "gradients", "masters", "states" (of the optimizer) and
  /// "average" (training.ema); with tiers also the rows named below. Elsewhere also "activations" and "decoding"
  std::string what;
  int64_t bytes = 0;
  /// "device": where the rank computes, which is the host for a CPU; "host": memory.host; "host or disk": as tiers
  /// decide
  std::string place;
  /// Returns true for a row that is a smallest budget, whose bytes other rows count.
  bool is_budget() const { return what == "at once" || what == "without a disk" || what == "largest chunk"; }
};

/// Returns the memory of rank `rank` for each model between the last backward pass of a step and its update. It counts
/// the declared parameters of the models, built on the meta device for this rank of the layout. It includes the padding
/// of chunks, the optimizer's states and the average of the weights. It excludes activations (activation_need()),
/// temporaries and gathered copies. Rows of 0 bytes are omitted.
///
/// With tiers of [memory] each model also has the rows of tier_needs():
///   "at once"          the smallest budget memory.host, if everything else is on a disk
///   "without a disk"   the smallest budget memory.host, if there is no disk
///   "largest chunk"    the smallest budget memory.device
///
/// No communication. Memory and time: as building a model without values, milliseconds for a hundred layers.
/// Errors: as initialize() for the config and its models, except a wrong number of ranks. "model": a model of more than
///         2^53 elements.
std::vector<MemoryNeed> memory_needs(const ConfiguredRun& run, int rank);

/// Returns the most bytes of activations of rank `rank` at any moment of a step, from a recorded one
/// (train/record_step.h): a row "activations" of the main model; of all models together if there are several. Nothing
/// if a step cannot be recorded. No communication. Time: that of recording one micro-batch, or the step of a pipeline.
std::optional<MemoryNeed> activation_need(const ConfiguredRun& run, int rank);

/// The memory of a model that a rank has whole for a while, and runs without gradients.
struct WholeModelNeed {
  int64_t weights = 0;
  int64_t tensors = 0;  ///< the most bytes of the tensors of its work
};
/// Returns it from shapes. `work` runs the model, on tensors of the meta device. No communication, and no weight is
/// read. Time: the bookkeeping of the work. Errors: c10::Error for an operator of `work` that LibTorch lacks on meta.
WholeModelNeed whole_model_need(
    const models::ModelShape& shape, at::ScalarType dtype,
    const std::function<void(const models::Model& model, const nn::Parameters& parameters)>& work);

/// The size of one model of a run.
struct ModelSize {
  std::string name;        ///< empty = the main model
  int64_t parameters = 0;  ///< elements of all parameters, with those of its adapter; 0 = it has none of its own
  int64_t trained = 0;     ///< how many of them are trained; 0 = it is frozen
  int64_t bytes = 0;       ///< of parameters, codes, gradients, masters and states, over all ranks
  std::vector<plan::PredictedNeed> needs{};  ///< the same by kind and place

  /// Adds a need of `ranks` ranks each.
  void add(const MemoryNeed& need, int64_t ranks);
};

/// Returns the sizes of the models, the main one first. Bytes are those of memory_needs(), taken for the first rank of
/// each pipeline stage, without the smallest budgets of tiers. Time and errors: as memory_needs(), for each stage.
std::vector<ModelSize> model_sizes(const ConfiguredRun& run);

/// Returns the elements of all parameters of a model, with those of its adapter. Time: as memory_needs().
double parameter_count(const NamedModel& model);

/// Formats the rows for logs, grouped by place: "parameters 3.1 MiB, gradients 3.1 MiB (device), at once 2.0 MiB
/// (host)".
std::string to_string(const std::vector<MemoryNeed>& needs);

/// Returns the bytes that processes on this machine can use: its memory, or the limit of the cgroup if that is smaller,
/// and swap.
double usable_memory();

/// Refuses models that certainly do not fit into `limit` bytes (0 = no check) for the `local` ranks of the run on this
/// machine. Checks nothing if ranks compute on an accelerator (`device`) or memory.disk is set. It also checks nothing
/// if only some ranks of a pipeline, whose stages differ, are on this machine.
/// Errors ("model"): a model that does not fit, with the needs, the limit and what to change; as memory_needs().
void check_memory(const ConfiguredRun& run, at::Device device, int64_t local, double limit = usable_memory());

}  // namespace colossal::train
