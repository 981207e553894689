#include "colossal/train/trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>

#include "colossal/base/clock.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/join.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/base/known_metrics.h"
#include "colossal/comm/agreement.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/memory/device_meter.h"
#include "colossal/models/registry.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/report/metrics.h"
#include "colossal/report/report.h"
#include "colossal/report/run_records.h"
#include "colossal/run/stored_config.h"
#include "colossal/train/device_budget.h"
#include "colossal/train/gather_timeline.h"
#include "colossal/train/memory_needs.h"
#include "colossal/train/rank_inputs.h"
#include "colossal/train/run_output.h"
#include "colossal/train/sample_flops.h"
#include "colossal/train/start_folder.h"
#include "colossal/train/step_measures.h"

namespace colossal::train {

/// The measurements of one step.
struct StepWork {
  StepOutcome outcome{};
  double seconds = 0;
  int64_t samples = 0, tokens = 0;  // of the batches that the rule took
  double flops = 0;                 // of a training step on one of these samples, on average
  std::optional<double> mfu{};
};

namespace {

/// Maximum delay until a directory that rank 0 made appears on this host, in a network file system.
constexpr std::chrono::seconds kFolderDelay(5);

/// The flags that select the start of a run.
RankInputs start_inputs(const TrainerOptions& options) {
  const char* start = options.start == Start::New ? "new" : options.start == Start::Resume ? "--resume" : "--overwrite";
  return {"run",
          {{"the start", start},
           {"--resume-from", options.resume_step ? std::to_string(*options.resume_step) : ""},
           {"--accept-changed-model", options.accept_changed_model ? "given" : ""},
           {"a function that scores answers", options.program.reward_function ? "given" : ""}},
          "start all ranks with the same flags"};
}

/// Returns the rows that every step has. For an image, its patches and the class token count as tokens.
std::vector<Metric> rows_of(const StepWork& work, const report::RankMetrics& ranks) {
  std::vector<Metric> rows{
      known_metric("loss", work.outcome.loss), known_metric("learning_rate", work.outcome.result.learning_rate),
      known_metric("grad_norm", work.outcome.result.gradient_norm), known_metric("tokens", work.tokens),
      known_metric("tokens_per_second", static_cast<double>(work.tokens) / work.seconds)};
  if (work.mfu) rows.push_back(known_metric("mfu", *work.mfu));
  rows.push_back(known_metric("peak_bytes", *std::max_element(ranks.peak_bytes.begin(), ranks.peak_bytes.end())));
  rows.push_back(known_metric("seconds", work.seconds));
  return rows;
}

/// The data of all ranks begins with the same batch and has the same traits.
RankInputs inputs_of(const run::RunData& data, const FurtherEvaluation& evaluation) {
  nlohmann::json traits = data.training->state();
  traits["vocabulary of the model"] = data.shape.vocabulary;
  traits["classes of the model"] = data.shape.task().class_names;
  if (data.held_out) traits["held-out part"] = data.held_out->state();
  RankInputs inputs = data_inputs(traits);
  inputs.values.insert(inputs.values.end(), evaluation.inputs.begin(), evaluation.inputs.end());
  return inputs;
}

/// The matmul libraries round differently, so all ranks use the one that rank 0 measured as faster. The other ranks do
/// not measure.
void use_matmul_of_first(comm::Group& everyone) {
  at::Tensor choice = at::full({1}, everyone.rank() == 0 ? ops::matmul_choice().encode() : 0, at::kLong);
  everyone.broadcast(choice, 0).wait();
  ops::set_matmul(ops::MatmulChoice::decode(choice.item<int64_t>()));
}

MachineMemory machine_memory(at::Device device, int64_t ranks) {
  return {.device = memory::total_bytes(device), .host = static_cast<int64_t>(usable_memory()), .ranks = ranks};
}

}  // namespace

Trainer::Trainer(comm::World& world, run::Config config, TrainerOptions options)
    : world_(world), config_(std::move(config)), options_(std::move(options)), folder_(config_.run.folder) {
  // An error on one rank is thrown on all ranks, so that no rank waits in a collective.
  const auto everyone = group_of_all(world_);
  // These checks come first, because other configs lead to other groups and collectives.
  require_same(*everyone, program_inputs());
  require_same(*everyone, start_inputs(options_));
  require_same(*everyone, config_inputs(config_));
  comm::agree(*everyone, at::kCPU, [&] {
    run::complete_keys(config_, options_.program.objectives, run::tables_of(options_.program.adapters));
    config_.validate();
    run::check_sources_stay(config_, options_.start == Start::Overwrite);
    if (is_first()) lock_ = take_folder(folder_, options_.start, options_.notices);  // before other ranks read it
  });
  run::prepare_data(with_sources(), options_.program, world_,
                    {.resumes = options_.start == Start::Resume, .devices = options_.devices});
  at::Device device = at::kCPU;
  comm::agree(*everyone, at::kCPU, [&] {
    const auto busy = world_.busy("opening the data");
    require(folder_appears(folder_.checkpoints(), kFolderDelay), "run", "the folder ", folder_.path(),
            " must be the same on all ranks: rank 0 has made it, this rank does not find it; start all ranks in one "
            "directory, or name an absolute path that all hosts share (run.folder)");
    device = comm::choose_device(config_.run.device, world_.local_rank(), *options_.devices);
    if (config_.run.matmul != "auto" || is_first()) ops::set_matmul(first_matmul());
    data_ = run::open_data(with_sources(), options_.program, builtin_text(),
                           static_cast<int>(config_.parallel.replica_of(world_.rank())), device);
    data_.model.from = config_.model.from;
    config_.model = data_.model;
    models::set_types(config_.model, data_.shape.own);
    data_.objective.write_keys(config_);
    models_ = models_of(config_, data_);
    check_memory({config_, *models_}, device, world_.local_size());
    if (is_first()) check_device_budget({config_, *models_}, machine_memory(device, world_.local_size()));
    make_further_evaluation();
  });
  require_same(*everyone, inputs_of(data_, further_evaluation_));
  use_matmul_of_first(*everyone);
  if (!options_.prediction.empty()) memory_ = std::make_unique<MeasuredMemory>(device);
  std::optional<Error> refused;
  try {
    engine_ = initialize(world_, config_, *models_, device);
    engine_->objective().check_model(engine_->model());
    check_evaluation();
    data_.training->want(engine_->tokens_read());
    if (data_.held_out) data_.held_out->want(engine_->tokens_read());
    rule_ = models_->make_rule(*engine_);
  } catch (const Error& error) {
    // An Error is thrown on every rank or on none, and before any communication, so the agreement below reports it on
    // all of them. Other exceptions, such as a lack of memory, end one rank, and the transport reports that to the
    // others.
    refused = error;
  }
  comm::agree(*everyone, at::kCPU, [&] {
    if (refused) throw *refused;
    log_ = Log({.rank = world_.rank(), .size = world_.size(), .file = folder_.log(world_.rank())});
  });
  stalls_ = std::make_unique<StallRecords>(world_, log_);
  rule_->begin(*engine_, {log_, config_, data_});
  start();
}

Trainer::~Trainer() = default;

comm::Group& Trainer::all_ranks() { return engine_->mesh().all(); }

Checkpoints Trainer::checkpoints() { return {folder_.checkpoints(), engine_->mesh(), config_.training.keep_last}; }

ops::MatmulChoice Trainer::first_matmul() const {
  const bool keeps = config_.run.matmul == "auto" && options_.start == Start::Resume;
  const std::optional<int64_t> stored = keeps ? stored_matmul(folder_) : std::nullopt;
  return stored ? ops::MatmulChoice::decode(*stored) : ops::choose_matmul(config_.run.matmul);
}

std::string Trainer::builtin_text() const {
  const bool keeps = options_.start == Start::Resume && std::filesystem::exists(folder_.builtin_text());
  return keeps ? folder_.builtin_text() : options_.builtin_data;
}

run::Config Trainer::with_sources() const {
  return options_.start == Start::Resume ? run::with_stored_sources(config_, folder_.path()) : config_;
}

std::vector<run::Sample> Trainer::samples(const run::ShowText& show) {
  const auto& make = data_.objective.row.samples;
  return make ? make(*this, show) : std::vector<run::Sample>();
}

void Trainer::keep(const std::vector<run::Sample>& samples) {
  if (!output_) return;
  for (const run::Sample& sample : samples) {
    report::SampleRecord record{engine_->steps_done(), sample.title, sample.text};
    if (sample.file.empty()) {
      if (!sample.text.empty()) output_->record(record);
      continue;
    }
    const bool is_name = std::all_of(sample.file.begin(), sample.file.end(), [](unsigned char c) {
      return std::isalnum(c) || c == '_' || c == '-' || c == '.';
    });
    require(is_name, "objective", "the file of a sample must have letters, digits, _, - and . alone: got ",
            printable(sample.file), "; rename it");
    record.file = checkpoint::step_path("samples", engine_->steps_done()) + "-" + sample.file;
    try {
      create_folder(folder_.samples());
      write_file(folder_.path() + "/" + record.file, sample.bytes);
    } catch (const Error& error) {
      log_.warning("a sample cannot be written: ", error.what());
      continue;
    }
    output_->record(record);
  }
}

void Trainer::make_further_evaluation() {
  require(config_.training.tasks.empty() || options_.further_evaluation, "training",
          "tasks need a program that evaluates them, such as `colossal train`: got training.tasks = [",
          join(config_.training.tasks), "]; leave them out, or set TrainerOptions::further_evaluation");
  if (options_.further_evaluation) further_evaluation_ = options_.further_evaluation(config_);
}

/// Used names are refused here, before the first step, and not only after an evaluation.
void Trainer::check_evaluation() {
  report::StepMetrics names(1);
  names.add(engine_->loss_rows());
  const run::Objective& objective = engine_->objective();
  if (data_.held_out) names.add(objective.metrics(std::vector<double>(static_cast<size_t>(objective.sums())), 0));
  names.add(further_evaluation_.rows);
  if (further_evaluation_.check) further_evaluation_.check(*this);
}

void Trainer::tell_notices(data::Batches& batches) {
  for (const std::string& notice : batches.take_notices())
    log_.write(is_first() ? LogLevel::kWarning : LogLevel::kInfo, notice);
}

void Trainer::evaluate(report::StepMetrics& m) {
  std::vector<Metric> rows;
  if (data_.held_out) {
    data_.held_out->rewind();
    const int64_t batch = config_.training.batch_size, all = (data_.held_out->samples() + batch - 1) / batch;
    Evaluation evaluation;
    for (int64_t i = 0; i < std::min(config_.training.evaluate_batches, all); ++i)
      evaluation += engine_->evaluate(rule_->with_fields(*engine_, data_.held_out->next()));
    tell_notices(*data_.held_out);
    rows = engine_->objective().metrics(evaluation.sums, evaluation.weight);
  }
  if (data_.objective.row.evaluated) data_.objective.row.evaluated(*engine_, rows);
  m.add(std::move(rows));
  if (further_evaluation_.measure) m.add(further_evaluation_.measure(*this));
}

bool Trainer::is_asked_to_stop() const { return options_.stop_requested && options_.stop_requested(); }

bool Trainer::stops() { return comm::sum(all_ranks(), is_asked_to_stop() ? 1 : 0) > 0; }

bool Trainer::agree_on_step(double seconds, report::RankMetrics& ranks, StepWork& work) {
  constexpr int64_t kValues = 5;
  const bool stop = is_asked_to_stop();
  const int64_t bytes = memory::peak_bytes(engine_->device());
  const at::Tensor own = at::tensor({stop ? 1.0 : 0.0, static_cast<double>(bytes), seconds,
                                     static_cast<double>(work.samples), static_cast<double>(work.tokens)},
                                    at::kDouble);
  at::Tensor all = at::empty({world_.size() * kValues}, at::kDouble);
  all_ranks().all_gather(all, own).wait();
  bool stops = false;
  double samples = 0, tokens = 0;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const double* values = all.const_data_ptr<double>() + rank * kValues;
    stops = stops || values[0] > 0;
    ranks.peak_bytes.push_back(static_cast<int64_t>(values[1]));
    ranks.seconds.push_back(values[2]);
    samples += values[3], tokens += values[4];
  }
  // The ranks of a replica take the same rows.
  const int64_t together = world_.size() / config_.parallel.replicas();
  work.samples = work.outcome.samples.value_or(static_cast<int64_t>(samples) / together);
  work.tokens = work.outcome.tokens.value_or(static_cast<int64_t>(tokens) / together);
  return stops;
}

double Trainer::peak_flops() {
  // All ranks measure at the same time, because the peak is what they reach together.
  const double own = ops::matmul_peak(engine_->parameters().options().dtype, engine_->device(), 0.1);
  memory::restart_peak(engine_->device());  // excludes the matrices of the measurement
  return comm::sum(all_ranks(), own);
}

void Trainer::count_flops() {
  try {
    flops_ = std::make_unique<SampleFlops>(engine_->model().shape, engine_->objective());
  } catch (const models::UnknownCosts& error) {
    // A pipeline needs these costs to be cut, so there is none here; no other code needs them.
    if (is_first()) log_.warning(error.message(), "; the run continues without reporting the share of the peak");
  }
}

StepWork Trainer::make_step() {
  StepWork work{.flops = flops_ ? flops_->of_example() : 0};
  const int64_t before = engine_->steps_done();
  const nlohmann::json position = this->position();  // the batches of a refused step must come again
  try {
    work.outcome = rule_->step(*engine_, [&] {
      tensor::Batch batch = data_.training->next();
      const auto rows = static_cast<double>(batch.rows());
      work.samples += batch.rows();
      if (flops_) work.flops += (flops_->of(batch) - work.flops) * rows / static_cast<double>(work.samples);
      work.tokens += engine_->objective().tokens(batch, data_.shape);
      tell_notices(*data_.training);
      return batch;
    });
  } catch (const RefusedStep& error) {
    end_refused(error, before, position);
  }
  require(engine_->steps_done() > before, "objective", "the step rule of ", data_.objective.name,
          " must make an update: got none in a step; call Engine::step()");
  return work;
}

void Trainer::end_refused(const RefusedStep& error, int64_t steps, const nlohmann::json& position) {
  // A rule that has made updates of its own in this step cannot continue from its middle.
  if (steps == 0 || steps != engine_->steps_done()) throw error;
  try {
    save(/*last=*/true, position);
  } catch (const Error& failure) {
    log_.warning("the steps before the refused one cannot be saved: ", failure.what());
    throw error;
  }
  throw RefusedStep(
      error.component(),
      concat(error.message(), "; step ", steps, " is saved: change what the message names, and continue with --resume"),
      error.needed_bytes());
}

bool Trainer::run() {
  const run::TrainingConfig& t = config_.training;
  const double peak = peak_flops();
  count_flops();
  bool stopped = false;
  TierMoves moves(*engine_);
  Stopwatch watch;
  while (engine_->steps_done() < t.steps && !stopped) {
    const Stopwatch own;  // step time of this rank: the agreement of the last step has ended on all ranks
    const int64_t before = engine_->steps_done();
    moves.begin_step();
    if (memory_) memory_->begin_step();
    StepWork work = make_step();
    const int64_t step = engine_->steps_done();
    work.seconds = watch.restart();
    report::RankMetrics ranks{.step = step};
    stopped = agree_on_step(own.seconds(), ranks, work);
    if (flops_) work.mfu = static_cast<double>(work.samples) * work.flops / work.seconds / peak;
    report::StepMetrics m(step);
    m.add(rows_of(work, ranks));
    m.add(work.outcome.result.rows);
    m.add(std::move(work.outcome.rows));
    m.add(moves.end_step(all_ranks()));
    if (memory_) m.add(memory_->end_step(all_ranks()));
    // Ranks detect different stalls. Rank 0 writes the files, so they contain only its stalls.
    if (const double stalled = stalls_->take_seconds(); stalled > 0) m.add(known_metric("stall_seconds", stalled));
    const bool is_last = step >= t.steps;
    const auto is_due = [&](int64_t every) { return every > 0 && step / every > before / every; };
    const bool evaluates = is_last || is_due(t.evaluate_every), saves = is_last || stopped || is_due(t.save_every);
    if (evaluates) evaluate(m);
    const bool samples = !is_last && !stopped && is_due(t.sample_every);
    if (output_) output_->write(m, ranks);
    if (saves) save(is_last || stopped);
    if (samples) keep(this->samples());
    // These are not part of a step. All other work is: an accelerator may still update while the host writes metrics.
    if (evaluates || saves || samples) watch.restart();
  }
  if (output_) output_->finish();
  if (auto timeline = gather_pipeline_timeline(engine_->mesh(), engine_->distributed().executor()))
    timeline_ = std::make_unique<report::PipelineTimeline>(std::move(*timeline));
  const bool finished = engine_->steps_done() >= t.steps;
  log_.info(finished ? "done" : "stopped", " after step ", engine_->steps_done(), "; checkpoint in ",
            folder_.checkpoints());
  return finished;
}

void Trainer::write_report(const std::vector<run::Sample>& samples) {
  if (!is_first()) return;
  try {
    keep(samples);
    write_file(folder_.report(), report::render_report(report_of()));
    if (timeline_) write_file(folder_.pipeline_trace(), schedule::chrome_trace(timeline_->titled(), 1e-3));
    log_.info("report: ", folder_.report());
  } catch (const Error& error) {
    log_.warning("the report of this run cannot be written: ", error.what());
  }
}

report::Report Trainer::report_of() const {
  report::Report report{.runs = {report::read_run(folder_.path())}, .defaults = to_toml(run::Config{})};
  if (timeline_) report.timeline = *timeline_;
  return report;
}

}  // namespace colossal::train
