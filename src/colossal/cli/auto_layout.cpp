#include "colossal/cli/auto_layout.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "colossal/base/bytes.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/base/number.h"
#include "colossal/base/run_folder.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/plan_run.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/launch/environment.h"
#include "colossal/predict/search.h"
#include "colossal/predict/step.h"
#include "colossal/run/calibrate.h"
#include "colossal/run/data.h"
#include "colossal/run/layout_keys.h"
#include "colossal/run/stored_config.h"
#include "colossal/train/rank_inputs.h"

namespace colossal::cli {
namespace {

constexpr double kSearchSeconds = 8;  // before training; measuring a machine without a profile takes two more
constexpr int64_t kMaxLayoutBytes = int64_t{16} << 20;

/// Returns the config that the run folder holds, if it can be read.
std::optional<run::Config> saved_config(const RunFolder& folder) {
  if (!std::filesystem::exists(folder.config())) return std::nullopt;
  try {
    run::Config saved;
    ConfigDocument::load(folder.config()).read(saved);
    return saved;
  } catch (const Error&) {
    return std::nullopt;  // of a version with other keys: its layout is not known
  }
}

std::optional<plan::Prediction> saved_prediction(const RunFolder& folder) {
  if (!std::filesystem::exists(folder.prediction())) return std::nullopt;
  try {
    return plan::parse_prediction(read_file(folder.prediction(), kMaxLayoutBytes), folder.prediction());
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

int64_t ranks_of_auto(const distributed::ParallelConfig& parallel, const run::RunConfig& run,
                      const comm::Devices& devices) {
  const int64_t wanted = parallel.ranks_wanted;
  const comm::Environment launched = comm::read_environment(comm::process_variables());
  if (launched.launcher != comm::Launcher::None) {
    require(wanted == 0 || wanted == launched.size, "parallel",
            "ranks must be those of the launcher: got ranks = ", wanted, ", but ", comm::to_string(launched.launcher),
            " started ", launched.size, "; leave ranks out, or start as many");
    return launched.size;
  }
  if (wanted > 0) return wanted;
  const bool is_cpu = comm::choose_device(run.device, 0, devices).is_cpu();
  require(!is_cpu, "parallel",
          "auto needs the number of ranks on a machine without GPUs and without a launcher: got ranks = 0; set "
          "parallel.ranks, for instance to the number of cores");
  return devices.count();
}

ChosenLayout choose_layout(const run::Config& config, const run::Program& program, int64_t ranks, bool resumes) {
  const RunFolder folder(config.run.folder);
  if (const auto saved = resumes ? saved_config(folder) : std::nullopt; saved && saved->parallel.ranks() == ranks)
    return {.table = run::layout_table(*saved, config),
            .why = concat("kept from ", folder.config(), ", because only the same layout resumes bitwise"),
            .prediction = saved_prediction(folder)};
  const bool on_gpus = config.run.device != "cpu" && comm::cuda_devices().count() > 0;
  const run::ClusterChoice hardware = run::choose_cluster("this", on_gpus);
  if (!hardware.note.empty()) say(hardware.note);
  const run::ResolvedModel model =
      run::resolve_run(resumes ? run::with_stored_sources(config, folder.path()) : config, program);
  run::Config searched = config;
  model.objective.write_keys(searched);
  predict::set_device(searched, hardware.profile);
  const plan::Cluster cluster = predict::cluster_of(ranks, hardware.profile);
  predict::SearchResult found = predict::search({searched, train::models_of(searched, model)}, cluster,
                                                {.ranks = ranks, .results = 1, .seconds = kSearchSeconds});
  predict::FoundLayout& best = found.best.front();
  for (const std::string& kept : found.kept) best.why += concat("\nkept: ", kept);
  return {.table = std::move(best.table), .why = std::move(best.why), .prediction = std::move(best.prediction)};
}

ChosenLayout choose_layout_together(comm::World& world, const run::Config& config, const run::Program& program,
                                    bool resumes) {
  const auto everyone = train::group_of_all(world);
  const auto busy = world.busy("searching the fastest layout");
  std::string text;
  comm::agree(*everyone, at::kCPU, [&] {
    if (world.rank() != 0) return;
    const ChosenLayout layout = choose_layout(config, program, world.size(), resumes);
    with_layout(config, layout).validate();
    print_layout(layout);
    text = encode(layout);
  });
  return decode(comm::broadcast_text(*everyone, at::kCPU, 0, text));
}

run::Config with_layout(const run::Config& config, const ChosenLayout& layout) {
  run::Config result = run::without_layout(config, {});
  ConfigDocument::parse(layout.table, "the chosen layout").read(result);
  return result;
}

void ChosenLayout::fields(Fields& f) {
  f.member("table", table);
  f.member("why", why);
  f.optional(!prediction).member("prediction", prediction);
}

std::string encode(const ChosenLayout& layout) { return json_line(to_json_object(layout)); }

ChosenLayout decode(const std::string& text) {
  const nlohmann::json object = parse_json_object(text, "the chosen layout", "plan");
  try {
    return read_stored<ChosenLayout>(object, "plan");
  } catch (const Error& error) {
    throw Error("plan", concat("a chosen layout must be a JSON object with table and why: ", error.message()));
  }
}

ChosenLayout read_layout(const std::string& path) { return decode(read_file(path, kMaxLayoutBytes)); }

LayoutFile::LayoutFile(const std::string& text)
    : path_(std::filesystem::temp_directory_path() / "colossal-layout-XXXXXX") {
  // The file that mkstemp() creates is readable by this user alone, so the text goes into that file and not into one
  // that replaces it.
  const int descriptor = ::mkstemp(path_.data());
  std::FILE* file = descriptor < 0 ? nullptr : ::fdopen(descriptor, "w");
  bool is_written = file && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file) is_written = std::fclose(file) == 0 && is_written;
  if (descriptor >= 0 && !file) ::close(descriptor);
  if (descriptor >= 0 && !is_written) ::unlink(path_.c_str());
  require(is_written, "plan", "what this process found needs a file in ",
          std::filesystem::temp_directory_path().string(), ", where none can be written; set TMPDIR");
}

LayoutFile::~LayoutFile() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void print_layout(const ChosenLayout& layout) {
  std::string text = concat("chosen layout: ", layout.why, "\n", layout.table);
  if (layout.prediction) {
    text += concat("predicted: ", text_of(layout.prediction->step_seconds, 3), " s a step, ",
                   readable_bytes(layout.prediction->peak_bytes), " on a rank");
    const plan::RankLoads& loads = layout.prediction->rank_load;
    if (loads.worst > 1)
      text += concat(", ", readable_bytes(loads.peak_bytes), " if its experts get ", loads.worst, " times their share");
  }
  while (text.ends_with('\n')) text.pop_back();
  say(text);
}

}  // namespace colossal::cli
