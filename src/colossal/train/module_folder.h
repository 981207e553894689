// The folders of a user-defined module in training: its checkpoints (optimizer and parameters, buffers, generators, and
// a value of the caller's), and the record of the caller's loop, the files of a run folder that `colossal report`
// reads.
//
//   train::ModuleCheckpoints checkpoints(folder, mesh, config, optimization, device);
//   checkpoints.add_buffer("mean", mean, tensor::ShardSpec::whole({4}));
//   checkpoints.save({{"epoch", 3}});
//   const std::optional<train::Resumed> resumed = checkpoints.resume();
//
//   train::ModuleRecord record("runs/own", mesh, config, {.steps_done = 0, .parameters = 1000});
//   record.end_step(training.steps_done(), result, loss, weight);       // after each step, on every rank
//   record.note("eval_loss", 2.5);                                      // a further value of that step
//   record.flush();                                                     // before the next step
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/clock.h"
#include "colossal/base/json.h"
#include "colossal/base/log.h"
#include "colossal/base/run_folder.h"
#include "colossal/comm/mesh.h"
#include "colossal/run/config.h"
#include "colossal/tensor/shard_spec.h"
#include "colossal/train/checkpoints.h"
#include "colossal/train/optimization.h"
#include "colossal/train/step_result.h"

namespace colossal::report {
struct RankMetrics;
class StepMetrics;
}  // namespace colossal::report

namespace colossal::train {

class RunOutput;

/// Saves and loads the checkpoints of a module in one folder. Buffers are copied; they get the dtype of the parameters'
/// exact values, so that they are the same in every precision with such values.
class ModuleCheckpoints final : Resumable {
 public:
  /// `mesh`, `config` and `optimization` must outlive this object.
  /// `device`: the device of the parameters.
  ModuleCheckpoints(std::string folder, comm::Mesh& mesh, const run::Config& config, Optimization& optimization,
                    at::Device device);
  /// Adds this rank's part of a buffer, or a view of it, which a load writes.
  void add_buffer(const std::string& name, at::Tensor value, tensor::ShardSpec spec);

  /// Saves a checkpoint of the current step: see ModuleTraining::save().
  void save(const nlohmann::json& extra);
  /// Continues from the newest checkpoint: see ModuleTraining::load(). The caller must then call zero_grad().
  Resumed load();
  /// Calls load() if the folder holds a step; otherwise returns none.
  std::optional<Resumed> resume();

 private:
  int64_t steps_done() const override { return optimization_.steps_done(); }
  checkpoint::TrainingState state() override;
  void loaded(const checkpoint::TrainingState& filled) override;
  void check_progress(const nlohmann::json& progress) const override { optimization_.check_progress(progress); }
  Resumed load(const checkpoint::StepFolders& steps);

  struct Buffer {
    std::string name;
    at::Tensor value;
    tensor::ShardSpec spec;
  };
  comm::Mesh& mesh_;
  const run::Config& config_;
  Optimization& optimization_;
  at::Device device_;
  Checkpoints checkpoints_;
  std::vector<Buffer> buffers_;
};

/// What the start of a recorded training is described by.
struct RecordedStart {
  int64_t steps_done = 0;                 ///< above 0: the training continues, and later rows are removed
  int64_t parameters = 0;                 ///< number of elements
  at::Device device = at::kCPU;           ///< device whose peak memory is recorded
  std::string module = "module";          ///< name of the module
  std::vector<std::string> command = {};  ///< words of the command line
};

/// The files of one training: config.toml, metrics.jsonl, history.jsonl, ranks.jsonl, a log and TensorBoard events.
/// Rank 0 writes them. If a write fails, a warning is logged, and the data follow as soon as writing works again.
class ModuleRecord {
 public:
  /// Creates the folder and opens the files. `mesh` must outlive the object. Collective among all ranks.
  /// Errors, the same on every rank: ("run") a folder with a checkpoint, if the training begins anew; ("file") a folder
  ///         that cannot be written to.
  ModuleRecord(const std::string& folder, comm::Mesh& mesh, const run::Config& config, const RecordedStart& start);
  ~ModuleRecord();  ///< calls flush()
  ModuleRecord(const ModuleRecord&) = delete;
  ModuleRecord& operator=(const ModuleRecord&) = delete;

  /// Starts the row of a step, after flush() of the earlier one. `loss`: this rank's, the mean over `weight`; the row
  /// has the mean of all ranks. `seconds` of the row begin with the earlier step, or with the last pause().
  /// Communication: an all_gather of 32 bytes per rank.
  void end_step(int64_t step, const StepResult& result, double loss, double weight);
  /// Adds a value to the row of the last step: one of the library's metrics, with its unit and plot, or one of its own.
  /// Ranks must add the same names; rank 0's values count. Errors ("metrics"): a name that is used or not valid.
  /// ("training"): no step since the start or since flush().
  void note(const std::string& name, double value);
  /// Restarts the clock: work since the last step, such as an evaluation, does not belong to the next one.
  void pause() { watch_.restart(); }
  /// Writes the row of the last step.
  void flush();

 private:
  comm::Mesh& mesh_;
  RunFolder folder_;
  at::Device device_;
  std::optional<Log> log_;
  std::unique_ptr<RunOutput> output_;                 // null on other ranks than 0
  std::unique_ptr<report::StepMetrics> row_;          // of the last step; null = flushed
  std::unique_ptr<report::RankMetrics> rank_values_;  // of that step
  Stopwatch watch_;
};

}  // namespace colossal::train
