#include "colossal/checkpoint/checkpoint.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/checkpoint/folder.h"
#include "colossal/checkpoint/manifest.h"

namespace colossal::checkpoint {

std::optional<std::string> latest(const std::string& folder) {
  const std::vector<int64_t> steps = complete_steps(folder);
  if (steps.empty()) return std::nullopt;
  return step_path(folder, steps.back());
}

nlohmann::json read_progress(const std::string& path) { return Manifest::read(path + "/manifest.json").progress; }

}  // namespace colossal::checkpoint
