#include "colossal/checkpoint/newest.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <sstream>

#include "colossal/checkpoint/folder.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/group.h"

namespace colossal::checkpoint {
namespace {

std::string listed(const std::vector<int64_t>& steps) {
  std::string text;
  for (const int64_t step : steps) text += concat(text.empty() ? "" : ", ", step);
  return text.empty() ? "none" : text;
}

}  // namespace

std::vector<int64_t> agreed_steps(const std::string& folder, comm::Group& world) {
  std::string text;
  if (world.rank() == 0)
    for (const int64_t step : complete_steps(folder)) text += concat(step, " ");
  std::istringstream words(comm::broadcast_text(world, at::kCPU, 0, text));
  std::vector<int64_t> steps;
  for (int64_t step = 0; words >> step;) steps.push_back(step);
  return steps;
}

Found load_newest(const std::string& folder, const std::vector<int64_t>& steps, std::optional<int64_t> wanted,
                  TrainingState& state, comm::Group& world, const tensor::Place& place, const ProgressCheck& check) {
  comm::agree(world, at::kCPU, [&] {
    require(!steps.empty(), "checkpoint", "there is no complete checkpoint in ", folder, " to go on from");
    require(!wanted || std::binary_search(steps.begin(), steps.end(), *wanted), "checkpoint",
            "there is no complete checkpoint of step ", wanted.value_or(0), " in ", folder,
            "; of these steps there are: ", listed(steps));
  });
  Found found;
  std::vector<int64_t> tried = wanted ? std::vector<int64_t>{*wanted} : steps;
  for (; !tried.empty(); tried.pop_back()) {
    found.step = tried.back();
    found.path = step_path(folder, found.step);
    const auto damage = load_unless_damaged(found.path, state, world, place, "", check);
    if (!damage) return found;
    found.damaged.push_back(*damage);
  }
  const std::string rule = wanted ? concat("the checkpoint of step ", *wanted, " cannot be read; complete ones in ",
                                           folder, " are: ", listed(steps))
                                  : concat("none of the checkpoints in ", folder, " can be read (", listed(steps), ")");
  throw Error("checkpoint", concat(rule, ": ", found.damaged.front().message(),
                                   wanted ? "; name another one, or move this one away" : ""))
      .mark_on_all_ranks();
}

}  // namespace colossal::checkpoint
