// A whole run: data, engine, metrics, evaluation, checkpoints, report. What `colossal train` does on each rank.
//
//   train::Trainer trainer(world, config, {.start = train::Start::Resume, .stop_requested = [] { return stopped; }});
//   const bool is_done = trainer.run();      // all steps, or a checkpoint where it was stopped
//   trainer.write_report("");                // report.html in config.run.folder
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/log.h"
#include "colossal/base/metric.h"
#include "colossal/base/run_folder.h"
#include "colossal/comm/launch/device.h"
#include "colossal/run/config.h"
#include "colossal/run/data.h"
#include "colossal/run/program.h"
#include "colossal/train/checkpoints.h"
#include "colossal/train/engine.h"
#include "colossal/train/step_rule.h"

namespace colossal::report {
struct PipelineTimeline;
struct RankMetrics;
struct Report;
struct StartRecord;
class StepMetrics;
}  // namespace colossal::report

namespace colossal::train {

class StallRecords;
struct StepWork;
class Trainer;

/// How a run treats what its folder holds already.
enum class Start {
  /// The run begins anew, in a folder that must hold no checkpoint.
  New,
  /// The run goes on from the newest checkpoint that can be read, with a warning about those that cannot. It begins
  /// anew if there is no step folder, and is refused if there are some but none is complete.
  Resume,
  /// The run begins anew. An earlier run in the folder is set aside, and removed once this one has a complete
  /// checkpoint (run/replaced_run.h).
  Overwrite,
};

/// What a run needs to know beside its config.
struct TrainerOptions {
  Start start = Start::New;
  /// Start::Resume goes on from the checkpoint of this step; newer ones are set aside (checkpoint::set_aside).
  std::optional<int64_t> resume_step;
  std::vector<std::string> notices;                      ///< warnings for the log, about how the config came about
  std::string builtin_data;                              ///< what data.path = "builtin" stands for
  run::Program program = run::built_in();                ///< models and objectives that the config may name
  const comm::Devices* devices = &comm::cuda_devices();  ///< that [run] device chooses among (comm::choose_device)
  std::vector<std::string> command;  ///< words of the command line, for the record of the run's start
  /// Returns a text of the model, for the record of samples; called on every rank every training.sample_every steps.
  /// Null or an empty text: no sample.
  std::function<std::string(Trainer&)> sample;
  std::function<bool()> stop_requested;  ///< asked once a step on every rank; true on one stops all after a checkpoint
  /// What a step does, by the name of the objective. Each function makes the rule when the engine is built. An
  /// objective without an entry makes one update by one batch a step
  std::map<std::string, std::function<std::unique_ptr<StepRule>(Engine&)>> step_rules{};
  /// Called on every rank at each evaluation, also without held-out data, with the rows of the evaluation so far. It
  /// may evaluate other batches, and adds rows, the same on all ranks
  std::function<void(Engine&, std::vector<Metric>&)> evaluated{};
};

/// One rank's part of a run. All ranks make one and call the same members in the same order.
class Trainer {
 public:
  /// Takes the run folder (rank 0: one run at a time), opens the data, makes the engine and loads what the run starts
  /// from. Collective among all ranks of `world`, which must outlive the trainer.
  /// Compares what the ranks were given (train/rank_inputs.h): program, flags, config, data and weights.
  /// Errors: whatever config, data, model or checkpoint refuse, and inputs that differ; the same on every rank, before
  ///         training starts.
  Trainer(comm::World& world, run::Config config, TrainerOptions options);
  ~Trainer();

  /// Trains to config.training.steps, or until a stop is requested. Returns true when all steps are done. In both cases
  /// the last step is saved.
  /// Errors: a run folder that was deleted, moved or made again; a checkpoint that cannot be written, if it is the last
  ///         one or no older one is there; the same on every rank. Other checkpoints, metrics and events that cannot be
  ///         written are warned about, and training goes on.
  bool run();
  /// Records `sample`, the text the model produced, unless it is empty; writes report.html, or warns that it cannot,
  /// and of a pipeline that made a step pipeline_trace.json (rank 0).
  void write_report(const std::string& sample);

  Engine& engine() { return *engine_; }
  /// Null if the model reads no text.
  const text::Tokenizer* tokenizer() const { return data_.tokenizer.get(); }
  const Log& log() const { return log_; }

 private:
  struct Output;  // what rank 0 writes: metrics, events, progress
  /// What data.path = "builtin" reads. A run that goes on reads the copy that it made at its start: the sources may
  /// have changed since.
  std::string builtin_text() const;
  void start();
  /// Reads the weights of model.from; after a resume only those that its checkpoint leaves out.
  void check_metric_names() const;
  void import_weights(bool resumed);
  /// Writes into the log what the run has: model, layout, data, and memory of this rank.
  void log_start();
  /// Takes the folder for this run, on rank 0, before anything is decided. Errors: another run writes to it.
  void take_folder();
  /// What remains to be done about the checkpoints of `steps` once this run has loaded what it starts from.
  void settle_folder(const checkpoint::StepFolders& steps);
  void resume(const checkpoint::StepFolders& steps);
  void save(bool last);
  /// Into the log: what was passed over on the way to the last batch.
  void tell_notices(data::Batches& batches);
  /// The rule of the run's objective. Errors ("objective"): a rule for a name that no objective has.
  std::unique_ptr<StepRule> make_rule();
  /// One step by the rule.
  StepWork make_step();
  /// Evaluates on held-out data, if there are any, calls options.evaluated, and adds the rows to the step.
  void evaluate(report::StepMetrics& metrics);
  /// Gathers memory and step time of each rank into `ranks`, and returns true if a rank was asked to stop, in one
  /// message. `seconds`: the step time of this rank.
  bool agree_on_step(double seconds, report::RankMetrics& ranks);
  /// Into the record of samples: a text of the model after the steps so far. No communication.
  void keep_sample(const std::string& text);
  report::StartRecord start_record(int64_t steps_done) const;
  double peak_flops();
  /// Operations of a step of all ranks, or nothing, with a warning, of a model that cannot tell (models::costs_of).
  std::optional<double> step_flops();
  report::Report report_of() const;
  bool is_first() const { return world_.rank() == 0; }
  comm::Group& all_ranks();
  Checkpoints checkpoints();

  comm::World& world_;
  run::Config config_;
  TrainerOptions options_;
  RunFolder folder_;
  std::unique_ptr<RunLock> lock_;  // on rank 0
  Log log_;
  std::unique_ptr<StallRecords> stalls_;
  run::RunData data_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<StepRule> rule_;
  std::unique_ptr<Output> output_;
  std::unique_ptr<report::PipelineTimeline> timeline_;  // of the last step of run(), on rank 0 of a pipeline
  int64_t saved_step_ = -1;                             // of the newest checkpoint that this run could go on from
};

}  // namespace colossal::train
