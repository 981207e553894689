#include "colossal/cli/train.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/cli/local_world.h"
#include "colossal/comm/launch.h"
#include "colossal/infer/generate.h"
#include "colossal/ops/host_memory.h"
#include "colossal/train/trainer.h"

namespace colossal::cli {
namespace {

/// Text after training: what a reader understands sooner than a loss. Every rank takes part, rank 0 prints.
std::string sample(train::Trainer& trainer, const train::Config& config, bool prints) {
  if (config.training.sample_tokens == 0 || !trainer.tokenizer()) return "";
  const data::Tokenizer& tokenizer = *trainer.tokenizer();
  std::vector<int64_t> prompt = tokenizer.encode_prompt(config.training.sample_prompt);
  if (prompt.empty()) prompt.push_back(tokenizer.end_id() >= 0 ? tokenizer.end_id() : 0);
  infer::GenerateOptions options{.max_tokens = config.training.sample_tokens, .end_id = tokenizer.end_id(),
                                 .sampling = {.temperature = 0.8, .top_k = 40, .seed = config.training.seed}};
  data::TextStream stream(tokenizer);
  std::string text;
  auto show = [&](const std::string& piece) {
    text += piece;
    if (prints) std::fputs(piece.c_str(), stdout);
    std::fflush(stdout);
  };
  if (prints) std::printf("\n%s", config.training.sample_prompt.c_str());
  infer::generate(trainer.engine().distributed(), prompt, options, [&](int64_t id) {
    show(stream.push(id));
    return true;
  });
  trainer.engine().store().end_pass();
  show(stream.finish());
  if (prints) std::printf("\n");
  return text;
}

int train_as_rank(const train::Config& config, train::Start start) {
  ops::keep_host_memory();
  const std::chrono::seconds timeout(config.run.timeout);
  const auto world = comm::launch({.backend = config.run.backend,
                                   .timeout = std::min(timeout, std::chrono::seconds(60)),
                                   .watchdog = timeout,
                                   .bind_cores = config.run.bind_cores,
                                   .device = train::choose_device(config.run.device, 0).is_cuda() ? "cuda" : "cpu",
                                   .note = say});
  train::Trainer trainer(*world, config, {.start = start, .builtin_data = COLOSSAL_SOURCE_DIR, .stop_requested = stop_requested});
  watch_stop_signals();  // from here on there is something to save; before, a signal simply ends the process
  if (!trainer.run()) {
    trainer.write_report("");
    if (world->rank() == 0) std::fprintf(stderr, "stopped; run the same command with --resume to go on\n");
    return stop_status() ? stop_status() : 1;
  }
  trainer.write_report(sample(trainer, config, world->rank() == 0));
  return 0;
}

}  // namespace

int train(const Arguments& arguments) {
  CLI::App app("Trains the model that CONFIG describes. Any key of the file is also a flag: --training.steps=30.", "colossal train");
  std::string path;
  bool resume = false, overwrite = false;
  app.add_option("config", path, "TOML file; `colossal help config` lists every key")->required();
  app.add_flag("--resume", resume, "go on from the newest checkpoint of the run folder, if it holds one");
  app.add_flag("--overwrite", overwrite, "start anew although the run folder holds checkpoints")->excludes("--resume");
  app.allow_extras();
  parse(app, arguments);
  const auto config = read_config<train::Config>(path, config_flags(app));
  config.validate();
  const train::Start start = resume ? train::Start::Resume : overwrite ? train::Start::Overwrite : train::Start::New;
  return with_ranks(config.parallel.ranks(), "train", arguments, [&] { return train_as_rank(config, start); });
}

}  // namespace colossal::cli
