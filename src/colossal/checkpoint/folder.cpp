#include "colossal/checkpoint/folder.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/base/file.h"

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
  require(std::rename(from.c_str(), to.c_str()) == 0, "checkpoint", "cannot rename ", from, " to ", to, ": ",
          std::strerror(errno));
}

}  // namespace

std::string step_path(const std::string& folder, int64_t step) { return folder + "/" + step_name(step); }

std::string partial_path(const std::string& folder, int64_t step) {
  return folder + "/." + step_name(step) + kPartialSuffix;
}

std::vector<int64_t> complete_steps(const std::string& folder) {
  std::vector<int64_t> steps;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    const auto step = step_of(entry.path().filename().string());
    std::error_code ignored;
    if (step && fs::exists(entry.path() / "manifest.json", ignored)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
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
    // A file system without the exchange: for a moment neither of the two is visible, older checkpoints are.
    const std::string replaced = folder + "/." + step_name(step) + ".replaced" + kPartialSuffix;
    rename_folder(final, replaced);
    rename_folder(partial, final);
    fs::remove_all(replaced);
  } else {
    fs::remove_all(partial);  // the one that was replaced
  }
  sync_folder(folder);
}

void prune(const std::string& folder, int64_t step, int keep_last) {
  if (keep_last <= 0) return;
  std::vector<int64_t> steps = complete_steps(folder);
  for (size_t i = 0; i + keep_last < steps.size(); ++i) {
    if (steps[i] == step) continue;
    std::error_code ignored;
    fs::rename(step_path(folder, steps[i]), partial_path(folder, steps[i]),
               ignored);  // invisible before it is incomplete
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
