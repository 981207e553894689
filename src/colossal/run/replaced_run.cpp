#include "colossal/run/replaced_run.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/run/exported_folder.h"

namespace colossal::run {
namespace {

namespace fs = std::filesystem;

std::string replaced_path(const RunFolder& folder) { return folder.checkpoints() + ".replaced"; }

/// Returns the files that belong to a run in addition to its checkpoints; logs are continued from run to run.
std::vector<std::string> companions(const RunFolder& folder) {
  std::vector<std::string> paths{
      folder.config(),    folder.metrics(),        folder.metric_names(), folder.history(),      folder.ranks(),
      folder.report(),    folder.pipeline_trace(), folder.tensorboard(),  folder.builtin_text(), folder.prediction(),
      folder.reference(), folder.rollouts(),       folder.matmul()};
  for (const std::string& name : model_file_names()) paths.push_back(folder.path() + "/" + name);
  return paths;
}

void rename(const std::string& from, const std::string& to) {
  const int error = std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
  require(error == 0, "run", "cannot rename ", from, " to ", to, ": ", std::strerror(error));
}

std::string in_checkpoints(const RunFolder& folder, const std::string& path) {
  return folder.checkpoints() + "/" + fs::path(path).filename().string();
}

}  // namespace

void set_run_aside(const RunFolder& folder) {
  for (const std::string& path : companions(folder))
    if (fs::exists(path)) rename(path, in_checkpoints(folder, path));
  rename(folder.checkpoints(), replaced_path(folder));
  sync_folder(folder.path());
}

bool restore_run(const RunFolder& folder) {
  const bool restores = checkpoint_set_aside(folder).has_value();
  if (restores) {
    if (fs::exists(folder.reference()) && !fs::exists(folder.next_reference()))
      rename(folder.reference(), folder.next_reference());
    for (const std::string& path : companions(folder)) fs::remove_all(path);  // those of the replacement
    fs::remove_all(folder.checkpoints());
    rename(replaced_path(folder), folder.checkpoints());
  }
  // this also restores the files of a run that a killed process left half set aside or half restored
  for (const std::string& path : companions(folder)) {
    if (!fs::exists(in_checkpoints(folder, path))) continue;
    fs::remove_all(path);
    rename(in_checkpoints(folder, path), path);
  }
  sync_folder(folder.path());
  remove_replaced_run(folder);
  return restores;
}

void place_reference(const RunFolder& folder) {
  if (!fs::exists(folder.next_reference())) return;
  fs::remove_all(folder.reference());  // of a run that had no complete checkpoint
  rename(folder.next_reference(), folder.reference());
}

std::optional<std::string> checkpoint_set_aside(const RunFolder& folder) {
  if (checkpoint::latest(folder.checkpoints())) return std::nullopt;
  return checkpoint::latest(replaced_path(folder));
}

void remove_replaced_run(const RunFolder& folder) {
  std::error_code ignored;
  fs::remove_all(replaced_path(folder), ignored);
}

}  // namespace colossal::run
