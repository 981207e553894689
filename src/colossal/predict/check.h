// Compares a predicted step with the second step of a real run: calls, bytes sent, memory and seconds of every rank.
//
//   const predict::CountedStep counted = predict::count_step(world, run, [&] { return batches.next(); });
//   const std::vector<predict::CountedStep> all = predict::gather_steps(everyone, counted);         // on rank 0
//   const bool has_experts = run.models.main().shape.part<models::MixtureSizes>().experts > 0;
//   const predict::Check check = predict::compare(predict::steps_of(roles, prediction), all, has_experts);
//   if (check.differs()) std::fputs(predict::to_text(check).c_str(), stderr);
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/base/step_events.h"
#include "colossal/base/step_memory.h"
#include "colossal/comm/group.h"
#include "colossal/comm/traffic.h"
#include "colossal/comm/world.h"
#include "colossal/plan/prediction.h"
#include "colossal/predict/roles.h"
#include "colossal/tensor/batch.h"
#include "colossal/train/run_models.h"

namespace colossal::predict {

/// What one rank does in one step, predicted or counted.
struct RankStep {
  std::vector<plan::PredictedCalls> calls;  ///< ordered by group, collective, phase
  StepMemory memory;                        ///< kinds and peak_bytes; peak_event is not used
  bool has_kinds = true;                    ///< false: `memory` has only peak_bytes, as accelerators count no kinds
  int64_t resident_bytes = 0;               ///< memory of the process (PredictedRole::resident_bytes); 0 = unknown
  double seconds = 0;                       ///< of the step; 0 = unknown

  void fields(Fields& f);
};

/// Returns the calls of a recorded step, counted as comm::Traffic counts them.
std::vector<plan::PredictedCalls> call_sums(const StepEvents& events);
/// Returns the counters of a rank as calls.
std::vector<plan::PredictedCalls> call_sums(const comm::Traffic& traffic);

/// The second step of a real rank, and the same step as it was recorded from the borders of its documents.
struct CountedStep {
  RankStep real;
  /// Calls and memory that train::record_step() finds with the documents of the rank's rows. Absent if no row has
  /// several documents, because then the prediction holds as it is
  std::optional<RankStep> recorded;

  void fields(Fields& f);
};

/// Makes two steps with the rule of the models, and counts the second one. `next` returns this replica's rows of a
/// global batch. `device`: none = the device of [run].
/// Collective among all ranks of `world`, which make no other calls meanwhile. Communication: that of two steps. Resets
/// the counters of world.traffic().
/// Memory: the model's. No folder is made; tiers make their scratch file (memory.disk).
/// Errors: those of train::initialize() and of a step.
CountedStep count_step(comm::World& world, const train::ConfiguredRun& run, const std::function<tensor::Batch()>& next,
                       std::optional<at::Device> device = {});

/// Returns the steps of all ranks, in rank order, on rank 0, and an empty list on other ranks. Collective among
/// `ranks`. Communication: comm::gather_text().
std::vector<CountedStep> gather_steps(comm::Group& ranks, const CountedStep& own);

/// Returns the predicted step of every rank, in rank order. `prediction` must be that of `roles`, in their order.
/// Errors ("plan"): a rank without a role, or in two.
std::vector<RankStep> steps_of(const RecordedRoles& roles, const plan::Prediction& prediction);

/// One number of one rank.
struct CheckRow {
  int rank = 0;
  /// "<group> <collective> <phase> calls" or "... bytes", a memory kind, "peak_bytes", "resident_bytes" or
  /// "step_seconds"
  std::string name;
  double predicted = 0, counted = 0;
  bool must_equal = false;  ///< a number of calls, or of bytes sent
  /// Returns true for a number that must be equal and is not. Bytes differ from half a byte on: sums of parts of a byte
  /// are rounded.
  bool differs() const;
  void fields(Fields& f);  ///< without `must_equal`, which JSON does not have
  bool operator==(const CheckRow&) const = default;
};

/// The numbers of all ranks.
struct Check {
  std::vector<CheckRow> rows;  ///< ordered by rank; of a rank calls and bytes, then memory, then seconds
  bool differs() const;        ///< true if a row differs
};

/// Compares the steps of the ranks. A call that only one side has counts 0 on the other. With `experts`, bytes of
/// all_to_all are left out, because the prediction takes experts to be loaded evenly.
/// Errors ("plan"): numbers of ranks that differ.
Check compare(std::vector<RankStep> predicted, const std::vector<CountedStep>& counted, bool experts);

/// Returns a list of objects {"rank", "name", "predicted", "counted"}, as JSON.
std::string to_json(const Check& check);
/// Returns the object of plan::to_json(prediction) with the member `checks`.
std::string to_json(const plan::Prediction& prediction, const Check& check);
/// Returns a table of memory and seconds of every rank, and of the calls and bytes that differ.
std::string to_text(const Check& check);

}  // namespace colossal::predict
