#include "colossal/train/start_folder.h"

#include <charconv>
#include <ctime>
#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/machine.h"
#include "colossal/base/version.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/data/texts/files.h"
#include "colossal/run/replaced_run.h"
#include "colossal/train/trainer.h"

namespace colossal::train {

std::unique_ptr<RunLock> take_folder(const RunFolder& folder, Start start, std::vector<std::string>& notices) {
  folder.create();
  auto lock = std::make_unique<RunLock>(folder.path());
  if (start == Start::New) {
    auto held = checkpoint::latest(folder.checkpoints());
    if (!held) held = run::checkpoint_set_aside(folder);
    require(!held, "run", "the folder ", folder.path(), " already holds ", held.value_or(""),
            "; add --resume to continue from it, --overwrite to start from scratch, or choose another run.folder");
    const std::string incomplete = checkpoint::step_folders(folder.checkpoints()).skipped_after(-1);
    require(incomplete.empty(), "run", "the folder ", folder.path(),
            " already holds an incomplete checkpoint: ", incomplete,
            "; restore it and add --resume, or add --overwrite to start from scratch, or choose another run.folder");
  } else if (run::restore_run(folder)) {
    notices.push_back(concat(
        "the run that was to overwrite the one in ", folder.path(),
        " ended before its first checkpoint; its files are removed, ",
        start == Start::Resume ? "and the earlier run continues" : "and the earlier run is overwritten by this one"));
  }
  // These are the scores of a run that has not begun.
  if (start == Start::Resume && checkpoint::latest(folder.checkpoints()))
    std::filesystem::remove_all(folder.next_reference());
  return lock;
}

void set_aside_steps(const RunFolder& folder, Start start, const checkpoint::StepFolders& steps,
                     std::optional<int64_t> resumed_after, const Log& log) {
  // A run without a complete step is not set aside as a whole, so its incomplete steps must not remain among the new
  // run's.
  const bool replaces = start == Start::Overwrite && steps.complete.empty();
  std::vector<int64_t> all = steps.complete;
  for (const auto& [step, what] : steps.skipped) all.push_back(step);
  for (const int64_t step : all) {
    if (!replaces && (!resumed_after || step <= *resumed_after)) continue;
    // Otherwise the next --resume would use it as a checkpoint of this run.
    const std::string aside = checkpoint::set_aside(folder.checkpoints(), step);
    log.warning("the ", replaces ? "incomplete" : "newer", " checkpoint of step ", step, " is set aside as ", aside,
                "; remove it if it is not needed");
  }
  if (!steps.complete.empty() && start == Start::Overwrite) run::set_run_aside(folder);
  if (!resumed_after) run::place_reference(folder);
}

void write_start_files(const RunFolder& folder, const StartFiles& files) {
  folder.create();
  if (!files.builtin_text.empty()) data::copy_text_files(files.builtin_text, {folder.path()}, folder.builtin_text());
  write_file(folder.config(), files.config);
  write_file(folder.matmul(), concat(files.matmul, "\n"));
  if (!files.prediction.empty())
    write_file(folder.prediction(), files.prediction + "\n");
  else
    std::filesystem::remove(folder.prediction());  // of an earlier start with another layout
}

std::optional<int64_t> stored_matmul(const RunFolder& folder) {
  if (!std::filesystem::exists(folder.matmul())) return std::nullopt;
  const std::string text = read_file(folder.matmul(), 64);
  int64_t code = 0;
  const bool is_number = std::from_chars(text.data(), text.data() + text.size(), code).ec == std::errc();
  return is_number ? std::optional(code) : std::nullopt;
}

report::StartRecord start_record(comm::Mesh& mesh, const std::string& model, int64_t parameters) {
  const Machine machine = describe_machine();
  report::StartRecord start;
  start.time = static_cast<double>(std::time(nullptr));
  start.version = version();
  start.revision = revision();
  for (const auto& axis : mesh.coordinates().axes()) start.mesh.push_back({axis.name, axis.size});
  start.facts = {{"model", model},
                 {"parameters", std::to_string(parameters)},
                 {"ranks", std::to_string(mesh.world().size())},
                 {"transport", mesh.world().backend()},
                 {"machine", concat(machine.cpu, ", ", machine.cores, machine.cores == 1 ? " core" : " cores")}};
  return start;
}

}  // namespace colossal::train
