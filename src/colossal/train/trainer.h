// A training run on one rank, as `colossal train` makes it: data, engine, metrics, evaluation, checkpoints, report.
//
//   train::Trainer trainer(world, config, {.start = train::Start::Resume, .stop_requested = [] { return stopped; }});
//   const bool is_done = trainer.run();      // all steps, or a checkpoint where it was stopped
//   trainer.write_report("");                // report.html in config.run.folder
#pragma once
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
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

namespace colossal::ops {
struct MatmulChoice;
}
namespace colossal::report {
struct PipelineTimeline;
struct RankMetrics;
struct Report;
struct StartRecord;
class StepMetrics;
}  // namespace colossal::report

namespace colossal::train {

class MeasuredMemory;
class RunOutput;
class SampleFlops;
class StallRecords;
struct StepWork;
class Trainer;

/// How a run treats the existing contents of its folder.
enum class Start {
  /// The run starts from scratch, in a folder that must hold no checkpoint.
  New,
  /// The run continues from the newest readable checkpoint and warns about unreadable ones. It starts from scratch if
  /// there is no step folder. It is refused if there are step folders, but none is complete.
  Resume,
  /// The run starts from scratch. An earlier run in the folder is set aside, and removed after this run has a complete
  /// checkpoint (run/replaced_run.h).
  Overwrite,
};

/// An evaluation of the main model in addition to that on held-out data, such as tasks of questions and answers.
struct FurtherEvaluation {
  std::vector<Metric> rows{};  ///< the metrics of measure(), whose names are checked before the first step
  /// Its inputs by name, which ranks compare (train/rank_inputs.h)
  std::vector<std::pair<std::string, std::string>> inputs{};
  /// Called before the first step on every rank, after the engine was made; its weights are not loaded yet. It must
  /// not communicate, and must throw on every rank or on none. Null = nothing
  std::function<void(Trainer&)> check{};
  /// Returns the metrics, the same on all ranks, which call it together at each evaluation. Null = no evaluation
  std::function<std::vector<Metric>(Trainer&)> measure{};
};

/// The inputs of a run in addition to its config.
struct TrainerOptions {
  Start start = Start::New;
  /// Step of the checkpoint from which Start::Resume continues; newer ones are set aside (checkpoint::set_aside).
  /// Absent: the newest readable one.
  std::optional<int64_t> resume_step;
  /// With Start::Resume: continue, with a warning, although keys have changed that change what the weights compute
  /// (run::KeyEffect). Without it, such changes are an error.
  bool accept_changed_model = false;
  std::vector<std::string> notices;  ///< warnings to log about how the config was derived
  /// Prediction of a step (plan::to_json), which is written to prediction.json and makes each step measure memory.
  /// Empty: none. The same on all ranks.
  std::string prediction{};
  /// path of the text that data.path = "builtin" selects: a folder, or a file of data::write_text_archive()
  std::string builtin_data;
  run::Program program = run::built_in();                ///< models, objectives and adapters that the config may name
  const comm::Devices* devices = &comm::cuda_devices();  ///< devices for [run] device (comm::choose_device)
  std::vector<std::string> command;  ///< words of the command line, for the record of the run's start
  /// Makes the further evaluation of the run, on every rank and without communication. cli::task_evaluation() makes
  /// that of training.tasks; null = none. The library's `train` does not evaluate tasks, so a config with
  /// training.tasks is refused without it
  std::function<FurtherEvaluation(const run::Config&)> further_evaluation{};
  /// Called at least once per step on every rank. If it returns true on one rank, all ranks save a checkpoint and stop
  std::function<bool()> stop_requested;
};

/// A run on one rank. All ranks make one and call the same members in the same order.
class Trainer {
 public:
  /// Locks the run folder (rank 0: one run at a time), opens the data, and makes the engine. Then loads the checkpoint
  /// or weights from which the run starts. Collective among all ranks of `world`, which must outlive the trainer.
  /// Compares the inputs of the ranks (train/rank_inputs.h): program, flags, config, data and weights.
  /// Errors: any error of config, data, model or checkpoint, and inputs that differ; the same on every rank, before
  ///         training starts.
  Trainer(comm::World& world, run::Config config, TrainerOptions options);
  ~Trainer();

  /// Trains to config.training.steps, or until a stop is requested. Returns true if all steps are done. In both cases
  /// the last step is saved.
  /// Errors: a run folder that was deleted, moved or recreated; a checkpoint that cannot be written, if it is the last
  ///         one or there is no older one; a refused step (RefusedStep), after the steps before it were saved; the same
  ///         on every rank. Failures to write other checkpoints, metrics and
  ///         events are logged as warnings, and training continues.
  bool run();
  /// Returns the samples that the row of the objective makes after the steps so far. `show`: see run::ShowText. All
  /// ranks must call it.
  std::vector<run::Sample> samples(const run::ShowText& show = {});
  /// Writes report.html, or a warning if that fails. Records `samples` first. After a step with a pipeline also writes
  /// pipeline_trace.json. Only rank 0 writes.
  void write_report(const std::vector<run::Sample>& samples = {});

  /// Returns whether a stop is requested on any rank, so that long work between steps can end early. All ranks must
  /// call it. Communication: one all_reduce of 8 bytes.
  bool stops();

  Engine& engine() { return *engine_; }
  const run::Config& config() const { return config_; }
  /// Returns the tokenizer of the samples (run::Objective::tokenizer()); null = none.
  const text::Tokenizer* tokenizer() const { return data_.tokenizer.get(); }
  /// Returns the data of this replica, with what is known about their prompts and answers.
  const run::RunData& data() const { return data_; }
  const Log& log() const { return log_; }

 private:
  /// Returns the libraries of products with which this start begins: those of an earlier start of a run that resumes,
  /// or those that run.matmul chooses.
  ops::MatmulChoice first_matmul() const;
  /// Returns the path that data.path = "builtin" selects. A resumed run reads the copy that it made at its first start,
  /// because the sources may have changed since.
  std::string builtin_text() const;
  void start();
  /// Makes further_evaluation_. No communication. Errors ("training"): tasks that no function evaluates; its errors.
  void make_further_evaluation();
  /// Checks that names of metrics differ, before the first step, and the further evaluation. Errors: a name that is
  /// used twice; those of FurtherEvaluation::check.
  void check_evaluation();
  /// Returns the config with which the model and its tokenizer are found: a run that resumes does not need its sources
  /// (run::with_stored_sources).
  run::Config with_sources() const;
  /// Loads the weights of model.from and of further models; after a resume only the weights that the checkpoint leaves
  /// out. All of them are read by run::read_source().
  void import_weights(bool resumed);
  void import_main(bool resumed);
  void import_further(const run::ResolvedFurther& further);
  /// Returns the source that model.from is. Collective. Errors: those of run::find_source().
  run::ModelSource main_source();
  /// Loads the originals of parameters that train in addition to adapters (NamedModel::is_main_without_adapters).
  void import_originals(const std::string& model);
  /// Loads the adapters of adapter.from.
  void import_adapters();
  /// Write the values with which a ControlNet or an IP-adapter within the model starts.
  void import_control();
  void import_image_prompt();
  /// Writes the vectors with which the words start that the run learns.
  void import_words();
  /// Returns run::checksum_of_base() if checkpoints leave its values out, the same on every rank; "" = they do
  /// not. Collective. Time: rank 0 reads the files.
  std::string checksum_of_base();
  /// Returns the weights of a model of the run; "" = the main one.
  std::vector<checkpoint::NamedTensor> weights_of(const std::string& model);
  /// Fills the weights of one model, those for which `takes` returns true. Returns the result of run::read_source().
  std::vector<std::string> import_model(const run::ModelSource& source, const std::string& model,
                                        const std::function<bool(const std::string& weight)>& takes,
                                        const std::vector<std::string>& may_lack);
  /// Logs the properties of the run: model, layout, data, and memory of this rank.
  void log_start();
  /// Sets aside what this run does not continue from, writes the files that describe the run (train/start_folder.h)
  /// and those of its model (run::write_model_files), and opens the output files. Called on rank 0 after this run has
  /// loaded its start.
  void settle_folder(const checkpoint::StepFolders& steps);
  void resume(const checkpoint::StepFolders& steps);
  /// Checks the models that the checkpoint with this progress leaves out. If a further model is a run that has gone on
  /// since, the checkpoint with which this run started is read, if it is still there.
  /// Errors ("model"): a further model has other weights than those with which the checkpoint was trained, or is not
  ///                   used any more; adapters have another base.
  void check_needed(const nlohmann::json& progress);
  void save(bool last) { save(last, position()); }
  void save(bool last, const nlohmann::json& position);
  /// Returns the position in the data and the state of the step rule, with which the next step begins.
  nlohmann::json position() const;
  /// Logs the notices of `batches`: records that were skipped up to the last batch.
  void tell_notices(data::Batches& batches);
  /// Makes one step with the rule. Errors: those of the step. If the engine refused it (RefusedStep), the steps before
  /// it are saved first, as when a stop is requested.
  StepWork make_step();
  [[noreturn]] void end_refused(const RefusedStep& error, int64_t steps, const nlohmann::json& position);
  /// Evaluates on held-out data, if there is any, and adds the rows to the step, with those of the objective's row and
  /// of the further evaluation.
  void evaluate(report::StepMetrics& metrics);
  /// Returns whether a stop is requested on this rank.
  bool is_asked_to_stop() const;
  /// Gathers memory and step time of each rank into `ranks`, and adds up in `work` what the replicas took. Returns true
  /// if a stop was requested on any rank. Communication: one all_gather for all of it. `seconds` is the step time of
  /// this rank.
  bool agree_on_step(double seconds, report::RankMetrics& ranks, StepWork& work);
  /// Adds samples of the steps so far to the record of samples, and writes their files. Failures are warnings. No
  /// communication. Errors ("objective"): a name of a file with other characters than those of run::Sample::file.
  void keep(const std::vector<run::Sample>& samples);
  report::StartRecord start_record(int64_t steps_done) const;
  double peak_flops();
  /// Sets flops_, or writes a warning if the costs of the model are unknown (models::costs_of).
  void count_flops();
  report::Report report_of() const;
  bool is_first() const { return world_.rank() == 0; }
  comm::Group& all_ranks();
  Checkpoints checkpoints();

  comm::World& world_;
  run::Config config_;
  TrainerOptions options_;
  RunFolder folder_;
  std::unique_ptr<RunLock> lock_;  // null on other ranks than 0
  Log log_;
  std::unique_ptr<StallRecords> stalls_;
  std::unique_ptr<MeasuredMemory> memory_;  // null without a prediction
  run::RunData data_;
  std::optional<RunModels> models_;
  std::unique_ptr<nlohmann::json> needs_;  // needed_models(), since start()
  std::string base_checksum_;              // checksum_of_base(), since start()
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<StepRule> rule_;
  FurtherEvaluation further_evaluation_;
  std::unique_ptr<RunOutput> output_;                   // null on other ranks than 0
  std::unique_ptr<report::PipelineTimeline> timeline_;  // last step of run(), on rank 0 of a pipeline
  int64_t saved_step_ = -1;             // step of the newest checkpoint from which this run could continue; -1 = none
  std::unique_ptr<SampleFlops> flops_;  // null if the costs of the model are unknown
};

}  // namespace colossal::train
