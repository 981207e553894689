#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "colossal/base/descriptor.h"
#include "colossal/base/error.h"
#include "colossal/cli/auto_layout.h"
#include "colossal/cli/builtin_text.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/task_evaluation.h"
#include "colossal/cli/whole_program.h"
#include "colossal/comm/launch/device.h"
#include "colossal/comm/launch/environment.h"
#include "colossal/infer/generate.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/memory/host_memory.h"
#include "colossal/plan/prediction.h"
#include "colossal/report/predicted_step.h"
#include "colossal/report/recorded_run.h"
#include "colossal/run/objectives/alignment/scorer_keys.h"
#include "colossal/run/program.h"
#include "colossal/run/resolve_shape.h"
#include "colossal/run/stored_config.h"
#include "colossal/train/placed_model.h"
#include "colossal/train/trainer.h"

namespace colossal::cli {
namespace {

std::vector<run::Sample> text_samples(train::Trainer& trainer, const run::ShowText& show) {
  const run::Config& config = trainer.config();
  const models::Model& model = trainer.engine().model();
  if (config.training.sample_tokens == 0 || !trainer.tokenizer() || !model.shape.task().generates() || !model.head)
    return {};
  const text::Tokenizer& tokenizer = *trainer.tokenizer();
  const run::RunData& data = trainer.data();
  std::vector<int64_t> prompt = data.encode_prompt ? data.encode_prompt(config.training.sample_prompt)
                                                   : tokenizer.encode_prompt(config.training.sample_prompt);
  if (prompt.empty()) prompt.push_back(tokenizer.end_id() >= 0 ? tokenizer.end_id() : 0);
  // Training steps never saw tokens after these positions.
  const int64_t trained = config.data.sequence - static_cast<int64_t>(prompt.size());
  infer::Request request{.prompt = prompt, .prompt_end = tokenizer.end_id()};
  request.options = {.max_tokens = std::clamp<int64_t>(trained, 0, config.training.sample_tokens),
                     .sampling = {.temperature = 0.6, .top_k = 40, .seed = config.training.seed}};
  request.end_ids = data.end_ids;
  if (tokenizer.end_id() >= 0) request.end_ids.push_back(tokenizer.end_id());
  text::TextStream stream(tokenizer);
  run::Sample sample{.title = config.training.sample_prompt};
  const auto take = [&](const std::string& piece) {
    sample.text += piece;
    if (show) show(piece);
  };
  if (show) show(config.training.sample_prompt + (model.shape.task().answers() || data.encode_prompt ? "\n" : ""));
  infer::generate(trainer.engine().distributed(), std::move(request), [&](int64_t id) {
    take(stream.push(id));
    return true;
  });
  take(stream.finish());
  return {std::move(sample)};
}

/// Returns the program with samples for each objective whose row has none: a text that the model generates after
/// training.sample_prompt, if it continues or answers texts. It is easier to judge than a loss. Texts are drawn by the
/// ranks of the run together.
run::Program with_text_samples(run::Program program) {
  for (const run::ObjectiveRow& row : program.objectives.rows())
    if (!row.samples) program.objectives.at(row.name).samples = text_samples;
  return program;
}

/// Option that names the file with the layout of a run. Only train_auto() gives it.
constexpr char kLayoutFlag[] = "--chosen-layout";

/// Option that names the descriptor of an inherited socket, whose other end scores answers (Program::reward_function).
/// Only the Python package gives it.
constexpr char kRewardFlag[] = "--reward-socket";

/// Returns the command of the user, without the words that train_auto() and the Python package add.
std::vector<std::string> command_of_user(const Arguments& arguments, bool has_layout) {
  std::vector<std::string> words{"colossal", "train"};
  words.insert(words.end(), arguments.begin(), arguments.end() - (has_layout ? 2 : 0));
  std::erase_if(words, [](std::string_view word) { return word.starts_with(kRewardFlag); });
  return words;
}

/// Returns the program of the command. `socket` is the value of kRewardFlag; it stays open for the ranks that this
/// process starts.
run::Program program_with(const run::Program* program, std::optional<int> socket) {
  run::Program known = program ? *program : run::built_in();
  struct stat state{};
  if (socket) {
    require(*socket > STDERR_FILENO && fstat(*socket, &state) == 0 && S_ISSOCK(state.st_mode), "reward", kRewardFlag,
            " must be the number of an inherited socket: got ", *socket,
            "; call colossal.train of Python with a function as `reward`");
    known.reward_function = std::make_shared<const Descriptor>(*socket);
  }
  return with_text_samples(whole_program(&known));
}

/// Requires that the objective draws answers if a function is to score them.
void check_reward_function(const run::Program& program, const run::ChosenObjective& objective) {
  const std::vector<run::OwnTable>& tables = objective.row.tables;
  const bool scores = std::any_of(tables.begin(), tables.end(), [](const auto& t) { return t.name == run::kReward; });
  require(!program.reward_function || scores, "reward",
          "a function that scores answers must be for a method that draws answers: got the objective ", objective.name,
          "; set alignment.method, or leave the function out");
}

/// Prints the prediction of the run beside its measurements, if it has one.
void print_predicted(const std::string& folder) {
  try {
    const std::string text = report::predicted_text(report::read_run(folder));
    if (!text.empty()) std::fprintf(stderr, "%s", text.c_str());
  } catch (const Error& error) {
    say(error.what());  // the run itself is complete
  }
}

/// Replaces parallel.auto by a layout: the one that `layout` holds, else the one that rank 0 finds for all ranks.
/// Collective among all ranks of `world` in the second case.
void settle_layout(comm::World& world, run::Config& config, train::TrainerOptions& options,
                   std::optional<ChosenLayout> layout) {
  if (!config.parallel.automatic) return;
  if (!layout) layout = choose_layout_together(world, config, options.program, options.start == train::Start::Resume);
  config = with_layout(config, *layout);
  if (layout->prediction) options.prediction = plan::to_json(*layout->prediction);
}

int train_as_rank(run::Config config, train::TrainerOptions options, std::optional<ChosenLayout> layout) {
  ignore_broken_pipes();  // the run must survive the reader of its log
  memory::keep_host_memory();
  const auto world = join_run(config.run, *options.devices);
  settle_layout(*world, config, options, std::move(layout));
  // A run with memory budgets must not keep much freed memory for reuse. Buffers of tiers are not part of this memory.
  if (config.memory.has_tiers()) memory::limit_host_memory(static_cast<size_t>(config.memory.device));
  options.builtin_data = builtin_text();
  options.stop_requested = stop_requested;
  train::Trainer trainer(*world, config, std::move(options));
  watch_stop_signals();  // from here on there is state to save; before, a signal just ends the process
  if (!trainer.run()) {
    trainer.write_report();
    if (world->rank() == 0) std::fprintf(stderr, "stopped; run the same command with --resume to continue\n");
    return stop_status() ? stop_status() : 128 + SIGTERM;  // another rank was asked to stop, for all of them
  }
  bool has_shown = false;
  const auto show = [&](const std::string& piece) {
    std::printf("%s%s", std::exchange(has_shown, true) ? "" : "\n", piece.c_str());
    std::fflush(stdout);
  };
  const std::vector<run::Sample> samples = trainer.samples(world->rank() == 0 ? run::ShowText(show) : nullptr);
  if (has_shown) std::printf("\n");
  std::fflush(stdout);  // before the log continues on another stream
  trainer.write_report(samples);
  if (world->rank() == 0) print_predicted(config.run.folder);
  return 0;
}

/// Trains with parallel.auto. Without a launcher this process searches, and the ranks that it starts read its choice.
int train_auto(const run::Config& config, const train::TrainerOptions& options, const Arguments& arguments) {
  const int64_t ranks = ranks_of_auto(config.parallel, config.run, *options.devices);
  if (comm::read_environment(comm::process_variables()).launcher != comm::Launcher::None)
    return with_ranks(ranks, "train", arguments, [&] { return train_as_rank(config, options, std::nullopt); });
  const ChosenLayout layout = choose_layout(config, options.program, ranks, options.start == train::Start::Resume);
  with_layout(config, layout).validate();
  print_layout(layout);
  const LayoutFile file(encode(layout));
  Arguments words = arguments;
  words.insert(words.end(), {kLayoutFlag, file.path()});
  return with_ranks(ranks, "train", words, [&] { return train_as_rank(config, options, layout); });
}

}  // namespace

int train(const Arguments& arguments, const run::Program* program) {
  return train(arguments, program, comm::cuda_devices());
}

int train(const Arguments& arguments, const run::Program* program, const comm::Devices& devices) {
  CLI::App app("Trains the model that CONFIG describes. Any key of the file is also a flag: --training.steps=30.",
               "colossal train");
  std::string path;
  std::string layout;  // of the process that started this rank
  std::optional<int> reward_socket;
  bool resume = false, overwrite = false;
  train::TrainerOptions options;
  options.devices = &devices;
  options.further_evaluation = task_evaluation;
  app.add_option("config", path, "TOML file; `colossal help config` lists every key")->required();
  app.add_flag("--resume", resume, "continue from the newest readable checkpoint in the run folder, if there is one");
  app.add_option("--resume-from", options.resume_step,
                 "continue from the checkpoint of this step; newer ones are set aside");
  app.add_flag("--overwrite", overwrite,
               "start from scratch although the run folder holds checkpoints; they are deleted after the first new one "
               "is complete")
      ->excludes("--resume");
  app.add_flag("--accept-changed-model", options.accept_changed_model,
               "with --resume: continue, with a warning, although keys have changed that change what the weights "
               "compute, such as model.rope_theta");
  app.add_option(kLayoutFlag, layout, "")->group("");         // train_auto() adds it
  app.add_option(kRewardFlag, reward_socket, "")->group("");  // the Python package adds it
  app.allow_extras();
  parse(app, arguments);
  if (overwrite && options.resume_step)
    throw UsageError("colossal train: --overwrite excludes --resume-from; see `colossal train --help`");
  if (options.accept_changed_model && !resume && !options.resume_step)
    throw UsageError("colossal train: --accept-changed-model needs --resume; see `colossal train --help`");
  options.program = program_with(program, reward_socket);
  run::GivenConfig given = run::read_given_config(path, config_flags(app));
  run::Config& config = given.config;
  options.notices = given.notices;
  run::complete_keys(config, options.program.objectives, run::tables_of(options.program.adapters), &options.notices);
  options.command = command_of_user(arguments, !layout.empty());
  config.validate();
  const bool resumes = resume || options.resume_step;
  const run::Config sources = resumes ? run::with_stored_sources(config, config.run.folder) : config;
  run::check_training(sources, options.program);  // so an error is printed once
  models::ModelShape shape = run::resolve_shape(sources.model, options.program);
  for (std::string& notice : models::use_present_names(config.model, shape.own))
    options.notices.push_back(std::move(notice));
  const run::ChosenObjective objective = run::choose_objective(
      config, options.program.objectives, shape, run::tables_of(options.program.adapters), &options.notices);
  check_reward_function(options.program, objective);
  shape = run::shape_for(*objective.objective, std::move(shape));
  run::choose_adapter(sources, options.program.adapters, shape, run::tables_of(options.program.objectives));
  comm::choose_device(config.run.device, 0, devices);
  if (!config.training.tasks.empty()) prepared_tasks(config);
  if (resumes) options.start = train::Start::Resume;
  if (overwrite) options.start = train::Start::Overwrite;
  if (!config.parallel.automatic) train::check_sizes(config.parallel, shape, objective.objective->example(1));
  if (config.parallel.automatic && layout.empty()) return train_auto(config, options, arguments);
  std::optional<ChosenLayout> chosen;
  if (!layout.empty()) chosen = read_layout(layout);
  const int64_t ranks = (chosen ? with_layout(config, *chosen) : config).parallel.ranks();
  return with_ranks(ranks, "train", arguments, [&] { return train_as_rank(config, options, chosen); });
}

}  // namespace colossal::cli
