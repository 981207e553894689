#include "colossal/train/trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "colossal/base/clock.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/machine.h"
#include "colossal/base/progress.h"
#include "colossal/checkpoint/agreement.h"
#include "colossal/checkpoint/hugging_face.h"
#include "colossal/models/registry.h"
#include "colossal/ops/matmul.h"
#include "colossal/ops/peak.h"
#include "colossal/train/metrics.h"
#include "colossal/train/report.h"
#include "colossal/train/tensorboard.h"

namespace colossal::train {
namespace {

std::string number(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

}  // namespace

struct Trainer::Output {
  Output(const RunFolder& folder, std::optional<int64_t> resumed_after, int64_t steps)
      : metrics(folder.metrics(), resumed_after), events(folder.tensorboard(), resumed_after),
        progress("step", steps) {}
  void write(const StepMetrics& m) {
    metrics.write(m);
    events.write(m);
    std::string text = concat("loss ", number("%.4f", m.loss), "  ", number("%.0f", m.tokens_per_second), " tokens/s  lr ",
                              number("%.2e", m.learning_rate), "  norm ", number("%.3f", m.grad_norm));
    if (m.eval_loss) text += concat("  held-out ", number("%.4f", *m.eval_loss));
    if (m.accuracy) text += concat("  accuracy ", number("%.1f", 100 * *m.accuracy), " %");
    progress.update(m.step, text);
  }
  MetricsWriter metrics;
  EventWriter events;
  Progress progress;
};

Trainer::Trainer(comm::World& world, Config config, TrainerOptions options)
    : world_(world), config_(std::move(config)), options_(std::move(options)), folder_(config_.run.folder) {
  // Whatever one rank refuses, all refuse: nobody is left waiting in a collective.
  const auto everyone = world_.make_group("trainer", [&] {
    std::vector<int> ranks(world_.size());
    for (int r = 0; r < world_.size(); ++r) ranks[r] = r;
    return ranks;
  }());
  checkpoint::agree(*everyone, at::kCPU, [&] {
    const auto busy = world_.busy("opening the data");
    config_.validate();
    if (is_first()) folder_.create();
    if (config_.run.matmul != "auto" || is_first()) ops::set_matmul(ops::choose_matmul(config_.run.matmul));
    data_ = open_data(config_, options_.builtin_data, static_cast<int>(config_.parallel.replica_of(world_.rank())));
  });
  // The libraries round differently, so all ranks take the one that rank 0 found faster.
  at::Tensor choice = at::full({1}, is_first() ? ops::matmul_choice().encode() : 0, at::kLong);  // the others measure nothing
  everyone->broadcast(choice, 0).wait();
  ops::set_matmul(ops::MatmulChoice::decode(choice.item<int64_t>()));
  engine_ = initialize(world_, config_, data_.shape);
  checkpoint::agree(*everyone, at::kCPU, [&] {
    log_ = Log({.rank = world_.rank(), .size = world_.size(), .file = folder_.log(world_.rank())});
  });
  stalls_ = std::make_unique<StallRecords>(world_, log_);
  start();
}

Trainer::~Trainer() = default;

comm::Group& Trainer::all_ranks() { return engine_->mesh().all(); }

void Trainer::start() {
  const auto newest = checkpoint::latest(folder_.checkpoints());
  require(!newest || options_.start != Start::New, "run", "the folder ", folder_.path(), " already holds ", newest.value_or(""),
          "; add --resume to go on from it, --overwrite to start anew, or choose another run.folder");
  std::optional<int64_t> resumed_after;
  const bool resumes = newest && options_.start == Start::Resume;
  if (resumes) {
    resume(*newest);
    resumed_after = engine_->steps_done();
  } else if (!config_.model.from.empty()) {
    const auto& architecture = models::architecture(engine_->model().shape.architecture);
    const auto busy = world_.busy("reading " + config_.model.from);
    checkpoint::agree(all_ranks(), at::kCPU, [&] {
      checkpoint::import_weights(config_.model.from, engine_->parameters(), engine_->weights(),
                                 {architecture.external_names(engine_->model().shape), architecture.prefix, architecture.ignored});
    });
    engine_->weights_loaded();
  }
  checkpoint::agree(all_ranks(), at::kCPU, [&] {
    if (!is_first()) return;
    folder_.create();
    lock_ = folder_.lock();
    if (newest && !resumes) std::filesystem::remove_all(folder_.checkpoints());
    folder_.create();
    write_file(folder_.config(), to_toml(config_));
    output_ = std::make_unique<Output>(folder_, resumed_after, config_.training.steps);
  });
  if (config_.parallel.zero > 0 && config_.parallel.data == 1 && is_first())
    log_.warning("parallel.zero = ", config_.parallel.zero, " shares nothing out: there is one replica; raise parallel.data or leave zero out");
  const models::ModelShape& s = engine_->model().shape;
  log_.info(s.architecture, " of ", engine_->parameters().numel(), " parameters (", s.layers, " layers, hidden ", s.hidden, ") on ",
            world_.size(), " rank(s): data ", config_.parallel.data, " x tensor ", config_.parallel.tensor.size,
             config_.parallel.tensor.size > 1 ? concat(" (", config_.parallel.tensor.mode, ")") : "", config_.parallel.zero > 0 ? concat(" x zero ", config_.parallel.zero) : "", config_.parallel.pipeline.size > 1 ? concat(" x pipeline ", config_.parallel.pipeline.size, " (", config_.parallel.pipeline.schedule, ", ",
                                                       config_.micro_batches(), " micro-batches)") : "", ", ", world_.backend(), "; ",
            data_.training->samples(), " samples of ", data_.sample_tokens, " tokens");
}

void Trainer::resume(const std::string& checkpoint_path) {
  const auto busy = world_.busy("reading " + checkpoint_path);
  checkpoint::agree(all_ranks(), at::kCPU, [&] { engine_->check_progress(checkpoint::read_progress(checkpoint_path)); });
  checkpoint::TrainingState state = engine_->state();
  checkpoint::load(checkpoint_path, state, all_ranks(), engine_->mesh().place());
  checkpoint::agree(all_ranks(), at::kCPU, [&] {
    data_.training->restore(state.progress.at("data"));
    // The same library as before the stop, or the numbers would differ in the last bits.
    if (config_.run.matmul == "auto") ops::set_matmul(ops::MatmulChoice::decode(state.progress.value("matmul", int64_t{0})));
  });
  engine_->loaded(state);
  saved_step_ = engine_->steps_done();
  log_.info("resumed from ", checkpoint_path);
}

void Trainer::save() {
  if (saved_step_ == engine_->steps_done()) return;
  const auto busy = world_.busy("saving a checkpoint");
  checkpoint::TrainingState state = engine_->state();
  state.progress["data"] = data_.training->state();
  state.progress["matmul"] = ops::matmul_choice().encode();
  state.progress["config"] = to_toml(config_);
  checkpoint::save(folder_.checkpoints(), engine_->steps_done(), state, all_ranks(), engine_->mesh().place(),
                   static_cast<int>(config_.training.keep_last));
  saved_step_ = engine_->steps_done();
}

void Trainer::evaluate(StepMetrics& m) {
  if (!data_.held_out) return;
  data_.held_out->rewind();
  const double batches = static_cast<double>(config_.training.evaluate_batches);
  double loss = 0, accuracy = 0;
  bool classifies = false;
  for (int64_t i = 0; i < config_.training.evaluate_batches; ++i) {
    const Evaluation evaluation = engine_->evaluate(data_.held_out->next());
    loss += evaluation.loss;
    accuracy += evaluation.accuracy.value_or(0);
    classifies = evaluation.accuracy.has_value();
  }
  m.eval_loss = loss / batches;
  if (classifies) m.accuracy = accuracy / batches;
  else m.perplexity = std::exp(*m.eval_loss);
}

bool Trainer::agree_on_step(StepMetrics& m) {
  const bool stop = options_.stop_requested && options_.stop_requested();
  at::Tensor most = at::tensor({stop ? 1.0 : 0.0, static_cast<double>(peak_resident_bytes())}, at::kDouble);
  all_ranks().all_reduce(most, comm::Reduce::Max).wait();
  m.peak_bytes = static_cast<int64_t>(most[1].item<double>());
  return most[0].item<double>() > 0;
}

double Trainer::peak_flops() {
  at::Tensor sum = at::full({1}, ops::matmul_peak(engine_->parameters().options().dtype, engine_->device(), 0.1), at::kDouble);
  all_ranks().all_reduce(sum, comm::Reduce::Sum).wait();  // measured at the same time: what all ranks reach together
  return sum.item<double>();
}

bool Trainer::run() {
  const TrainingConfig& t = config_.training;
  const double peak = peak_flops();
  const models::ModelShape& shape = engine_->model().shape;
  const double flops = models::architecture(shape.architecture).flops(shape, data_.sample_tokens) * static_cast<double>(t.batch_size);
  bool stopped = false;
  Stopwatch watch;
  while (engine_->steps_done() < t.steps && !stopped) {
    const data::Batch batch = data_.training->next();
    engine_->zero_grad();
    StepMetrics m;
    m.loss = engine_->train_step(batch);
    const StepResult result = engine_->step();
    m.step = engine_->steps_done();
    m.seconds = watch.restart();
    m.learning_rate = result.learning_rate;
    m.grad_norm = result.gradient_norm;
    m.tokens = t.batch_size * data_.sample_tokens;
    m.tokens_per_second = static_cast<double>(m.tokens) / m.seconds;
    m.mfu = flops / m.seconds / peak;
    stopped = agree_on_step(m);
    if (const double stalled = stalls_->take_seconds(); stalled > 0) m.stall_seconds = stalled;
    const bool is_last = m.step == t.steps;
    if (is_last || (t.evaluate_every > 0 && m.step % t.evaluate_every == 0)) evaluate(m);
    if (output_) output_->write(m);
    if (is_last || stopped || (t.save_every > 0 && m.step % t.save_every == 0)) save();
    watch.restart();  // evaluation and saving are no part of a step
  }
  if (output_) {
    output_->progress.finish();
    output_->events.flush();
  }
  timeline_ = gather_pipeline_timeline(engine_->mesh(), engine_->distributed().executor());
  const bool finished = engine_->steps_done() >= t.steps;
  log_.info(finished ? "done" : "stopped", " after step ", engine_->steps_done(), "; checkpoint in ", folder_.checkpoints());
  return finished;
}

void Trainer::write_report(const std::string& sample) {
  if (!is_first()) return;
  const models::ModelShape& shape = engine_->model().shape;
  const Machine machine = describe_machine();
  Report report;
  report.title = folder_.path();
  report.steps = read_metrics(folder_.metrics());
  for (const auto& axis : engine_->mesh().place().axes()) report.mesh.push_back({axis.name, axis.size});
  report.facts = {{"model", concat(config_.model.from.empty() ? config_.model.name : config_.model.from, " (", shape.architecture, ")")},
                  {"parameters", std::to_string(engine_->parameters().numel())},
                  {"ranks", std::to_string(world_.size())},
                  {"transport", world_.backend()},
                  {"machine", concat(machine.cpu, ", ", machine.cores, " cores")}};
  report.config = to_toml(config_);
  report.prompt = config_.training.sample_prompt;
  report.sample = sample;
  report.timeline = timeline_;
  if (timeline_) write_file(folder_.pipeline_trace(), schedule::chrome_trace(timeline_->titled(), 1e-3));
  write_file(folder_.report(), render_report(report));
  log_.info("report: ", folder_.report());
}

}  // namespace colossal::train
