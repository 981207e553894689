#include "colossal/checkpoint/folder.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <ranges>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/join.h"

namespace colossal::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "step-";
constexpr char kPartialSuffix[] = ".partial";

std::string step_name(int64_t step) {
  const std::string digits = std::to_string(step);
  return kPrefix + std::string(digits.size() < 6 ? 6 - digits.size() : 0, '0') + digits;
}

std::optional<int64_t> step_of(const std::string& name) {
  const size_t prefix = sizeof(kPrefix) - 1;
  int64_t step = 0;
  if (name.compare(0, prefix, kPrefix) != 0) return std::nullopt;
  std::from_chars(name.data() + prefix, name.data() + name.size(), step);
  if (name != step_name(step)) return std::nullopt;
  return step;
}

bool is_partial(const std::string& name) {
  return name.rfind(std::string(".") + kPrefix, 0) == 0 && name.size() > std::strlen(kPartialSuffix) &&
         name.compare(name.size() - std::strlen(kPartialSuffix), std::string::npos, kPartialSuffix) == 0;
}

void rename_folder(const std::string& from, const std::string& to) {
  const int error = std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
  require(error == 0, "checkpoint", "cannot rename ", from, " to ", to, ": ", std::strerror(error));
}

/// Returns why the entry is not a complete checkpoint; "" if it is one.
std::string incompleteness(const fs::path& path) {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) return failed ? failed.message() : "it is not a folder";
  if (fs::exists(path / "manifest.json", failed)) return "";
  return failed ? failed.message() : "it has no manifest.json";
}

}  // namespace

std::string step_path(const std::string& folder, int64_t step) { return folder + "/" + step_name(step); }

std::string partial_path(const std::string& folder, int64_t step) {
  return folder + "/." + step_name(step) + kPartialSuffix;
}

std::string StepFolders::skipped_after(int64_t step) const {
  return join(std::ranges::subrange(skipped.upper_bound(step), skipped.end()), "; ",
              [](const auto& each) { return each.second; });
}

StepFolders step_folders(const std::string& folder) {
  StepFolders found;
  std::error_code failed;
  fs::directory_iterator entry(folder, failed);
  if (failed == std::errc::no_such_file_or_directory || failed == std::errc::not_a_directory) return found;
  for (; !failed && entry != fs::directory_iterator(); entry.increment(failed)) {
    const fs::path& path = entry->path();
    const auto step = step_of(path.filename().string());
    if (!step) continue;
    const std::string why = incompleteness(path);
    if (why.empty())
      found.complete.push_back(*step);
    else
      found.skipped[*step] = concat(path.string(), ": ", why);
  }
  require(!failed, "checkpoint", "cannot read the folder of checkpoints ", folder, ": ", failed.message());
  std::sort(found.complete.begin(), found.complete.end());
  return found;
}

std::vector<int64_t> complete_steps(const std::string& folder) { return step_folders(folder).complete; }

std::string run_folder_of(const std::string& folder) {
  fs::path path = fs::path(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "run/checkpoints/"
  if (path.filename() != "checkpoints") return folder;
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

void begin_partial(const std::string& folder, int64_t step) {
  create_folder(folder);
  std::vector<fs::path> leftovers;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (is_partial(entry.path().filename().string())) leftovers.push_back(entry.path());
  for (const fs::path& path : leftovers) fs::remove_all(path);
  create_folder(partial_path(folder, step));
}

void publish(const std::string& folder, int64_t step) {
  const std::string partial = partial_path(folder, step), final = step_path(folder, step);
  sync_folder(partial);
  if (!fs::exists(final)) {
    rename_folder(partial, final);
  } else if (renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) != 0) {
    // The file system has no atomic exchange. Neither of the two checkpoints is visible for a moment; older ones are.
    const std::string replaced = folder + "/." + step_name(step) + ".replaced" + kPartialSuffix;
    rename_folder(final, replaced);
    rename_folder(partial, final);
    fs::remove_all(replaced);
  } else {
    fs::remove_all(partial);  // the exchange left the replaced checkpoint there
  }
  sync_folder(folder);
}

void prune(const std::string& folder, int64_t step, int keep_last) {
  if (keep_last <= 0) return;
  std::vector<int64_t> steps;
  try {
    steps = complete_steps(folder);
  } catch (const Error&) {
    // Only rank 0 runs this, so an error would stop it alone. The new checkpoint is complete, and the next save prunes
    // again.
    return;
  }
  for (size_t i = 0; i + keep_last < steps.size(); ++i) {
    if (steps[i] == step) continue;
    std::error_code ignored;
    // The checkpoint must become invisible before it becomes incomplete.
    fs::rename(step_path(folder, steps[i]), partial_path(folder, steps[i]), ignored);
    fs::remove_all(partial_path(folder, steps[i]), ignored);
  }
}

std::string set_aside(const std::string& folder, int64_t step) {
  std::string aside = step_path(folder, step) + ".unused";
  for (int taken = 1; fs::exists(aside);) aside = concat(step_path(folder, step), ".unused-", ++taken);
  rename_folder(step_path(folder, step), aside);
  return aside;
}

}  // namespace colossal::checkpoint
