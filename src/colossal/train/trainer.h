// A whole run: data, engine, metrics, evaluation, checkpoints, report. What `colossal train` does on each rank.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "colossal/base/log.h"
#include "colossal/base/run_folder.h"
#include "colossal/train/config.h"
#include "colossal/train/engine.h"
#include "colossal/train/metrics.h"
#include "colossal/train/pipeline_timeline.h"
#include "colossal/train/run_data.h"
#include "colossal/train/stall_records.h"

namespace colossal::train {

enum class Start {
  New,        ///< the folder must hold no checkpoint
  Resume,     ///< from the newest complete checkpoint, or from the start when there is none
  Overwrite,  ///< anew; the checkpoints of an earlier run are removed at the first save
};

struct TrainerOptions {
  Start start = Start::New;
  std::string builtin_data;               ///< what data.path = "builtin" stands for
  std::function<bool()> stop_requested;   ///< asked once a step on every rank; true on one stops all after a checkpoint
};

/// All ranks make one and call the same members in the same order.
class Trainer {
 public:
  /// Errors: whatever config, data, model or checkpoint refuse; the same on every rank, before training starts.
  Trainer(comm::World& world, Config config, TrainerOptions options);
  ~Trainer();

  /// Trains to config.training.steps, or until a stop is requested. Returns true when all steps are done. In both cases the last step is saved.
  bool run();
  /// Writes report.html, with `sample` as the text the model produced, and of a pipeline that made a step pipeline_trace.json (rank 0).
  void write_report(const std::string& sample);

  Engine& engine() { return *engine_; }
  /// Null for a model of images.
  const data::Tokenizer* tokenizer() const { return data_.tokenizer.get(); }
  const Log& log() const { return log_; }

 private:
  struct Output;  // what rank 0 writes: metrics, events, progress
  void start();
  void resume(const std::string& checkpoint);
  void save();
  /// On held-out data, into the metrics of the step; nothing where there is none.
  void evaluate(StepMetrics& metrics);
  /// What all ranks must know after a step, in one message: the largest memory, and whether one of them was asked to stop.
  bool agree_on_step(StepMetrics& metrics);
  double peak_flops();
  bool is_first() const { return world_.rank() == 0; }
  comm::Group& all_ranks();

  comm::World& world_;
  Config config_;
  TrainerOptions options_;
  RunFolder folder_;
  std::shared_ptr<const void> lock_;  // of the folder, on rank 0
  Log log_;
  std::unique_ptr<StallRecords> stalls_;
  RunData data_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Output> output_;
  std::optional<PipelineTimeline> timeline_;  // of the last step of run(), on rank 0
  int64_t saved_step_ = -1;
};

}  // namespace colossal::train
