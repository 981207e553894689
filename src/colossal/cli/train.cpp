#include "colossal/cli/train.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/cli/local_world.h"
#include "colossal/comm/launch/device.h"
#include "colossal/infer/generate.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/memory/host_memory.h"
#include "colossal/train/trainer.h"

namespace colossal::cli {
namespace {

/// Generates a text with the current model, which is easier to judge than a loss. All ranks must call it; `prints` is
/// true on rank 0 after training.
std::string sample(train::Trainer& trainer, const run::Config& config, bool prints) {
  const models::Model& model = trainer.engine().model();
  if (config.training.sample_tokens == 0 || !trainer.tokenizer() || !model.shape.task().generates() || !model.head)
    return "";
  const text::Tokenizer& tokenizer = *trainer.tokenizer();
  std::vector<int64_t> prompt = tokenizer.encode_prompt(config.training.sample_prompt);
  if (prompt.empty()) prompt.push_back(tokenizer.end_id() >= 0 ? tokenizer.end_id() : 0);
  // Training steps never saw tokens after these positions.
  const int64_t trained = config.data.sequence - static_cast<int64_t>(prompt.size());
  infer::Request request{.prompt = prompt, .prompt_end = tokenizer.end_id()};
  request.options = {.max_tokens = std::clamp<int64_t>(trained, 0, config.training.sample_tokens),
                     .sampling = {.temperature = 0.6, .top_k = 40, .seed = config.training.seed}};
  if (tokenizer.end_id() >= 0) request.end_ids.push_back(tokenizer.end_id());
  text::TextStream stream(tokenizer);
  std::string text;
  auto show = [&](const std::string& piece) {
    text += piece;
    if (prints) std::fputs(piece.c_str(), stdout);
    std::fflush(stdout);
  };
  const bool answers = trainer.engine().model().shape.task().answers();
  if (prints) std::printf("\n%s%s", config.training.sample_prompt.c_str(), answers ? "\n" : "");
  infer::generate(trainer.engine().distributed(), std::move(request), [&](int64_t id) {
    show(stream.push(id));
    return true;
  });
  show(stream.finish());
  if (prints) std::printf("\n");
  std::fflush(stdout);  // before the log continues on another stream
  return text;
}

int train_as_rank(const run::Config& config, train::TrainerOptions options) {
  ignore_broken_pipes();  // the run must survive the reader of its log
  memory::keep_host_memory();
  const auto world = join_run(config.run, *options.devices);
  // A run with memory budgets must not keep much freed memory for reuse. Buffers of tiers are not part of this memory.
  if (config.memory.has_tiers()) memory::limit_host_memory(static_cast<size_t>(config.memory.device));
  options.builtin_data = COLOSSAL_SOURCE_DIR;
  options.stop_requested = stop_requested;
  options.sample = [&config](train::Trainer& trainer) { return sample(trainer, config, false); };
  train::Trainer trainer(*world, config, std::move(options));
  watch_stop_signals();  // from here on there is state to save; before, a signal just ends the process
  if (!trainer.run()) {
    trainer.write_report("");
    if (world->rank() == 0) std::fprintf(stderr, "stopped; run the same command with --resume to continue\n");
    return stop_status() ? stop_status() : 1;
  }
  trainer.write_report(sample(trainer, config, world->rank() == 0));
  return 0;
}

}  // namespace

int train(const Arguments& arguments, const run::Program* program) {
  return train(arguments, program, comm::cuda_devices());
}

int train(const Arguments& arguments, const run::Program* program, const comm::Devices& devices) {
  CLI::App app("Trains the model that CONFIG describes. Any key of the file is also a flag: --training.steps=30.",
               "colossal train");
  std::string path;
  bool resume = false, overwrite = false;
  train::TrainerOptions options;
  options.devices = &devices;
  if (program) options.program = *program;
  app.add_option("config", path, "TOML file; `colossal help config` lists every key")->required();
  app.add_flag("--resume", resume, "continue from the newest readable checkpoint in the run folder, if there is one");
  app.add_option("--resume-from", options.resume_step,
                 "continue from the checkpoint of this step; newer ones are set aside");
  app.add_flag("--overwrite", overwrite,
               "start from scratch although the run folder holds checkpoints; they are deleted after the first new one "
               "is complete")
      ->excludes("--resume");
  app.allow_extras();
  parse(app, arguments);
  if (overwrite && options.resume_step)
    throw UsageError("colossal train: --overwrite excludes --resume-from; see `colossal train --help`");
  run::GivenConfig given = run::read_given_config(path, config_flags(app));
  run::Config& config = given.config;
  options.notices = given.notices;
  options.command = {"colossal", "train"};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  config.validate();
  const models::ModelShape shape = options.program.models.resolve(config.model);  // so an error is printed once
  for (std::string& notice : models::use_present_names(config.model, shape.own))
    options.notices.push_back(std::move(notice));
  models::set_types(config.model, shape.own);
  run::choose_objective(config, options.program.objectives, shape, run::tables_of(options.program.adapters));
  run::choose_adapter(config, options.program.adapters, shape, run::tables_of(options.program.objectives));
  comm::choose_device(config.run.device, 0, devices);
  if (resume || options.resume_step) options.start = train::Start::Resume;
  if (overwrite) options.start = train::Start::Overwrite;
  return with_ranks(config.parallel.ranks(), "train", arguments, [&] { return train_as_rank(config, options); });
}

}  // namespace colossal::cli
