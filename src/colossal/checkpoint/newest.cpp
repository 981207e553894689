#include "colossal/checkpoint/newest.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/join.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/group.h"

namespace colossal::checkpoint {
namespace {

using nlohmann::json;

std::string listed(const std::vector<int64_t>& steps) { return steps.empty() ? "none" : join(steps); }

std::string incomplete(const StepFolders& steps) {
  const std::string text = steps.skipped_after(-1);
  return text.empty() ? "" : concat("; incomplete: ", text);
}

}  // namespace

StepFolders agreed_steps(const std::string& folder, comm::Group& world) {
  StepFolders found;
  comm::agree(world, at::kCPU, [&] {
    if (world.rank() == 0) found = step_folders(folder);
  });
  const json seen = {{"complete", found.complete}, {"skipped", found.skipped}};
  const std::string text = seen.dump(-1, ' ', false, json::error_handler_t::replace);  // a path may contain any bytes
  const json agreed =
      parse_json(comm::broadcast_text(world, at::kCPU, 0, text), "the steps that rank 0 sees", "checkpoint");
  return {agreed["complete"].get<std::vector<int64_t>>(), agreed["skipped"].get<std::map<int64_t, std::string>>()};
}

Found load_newest(const std::string& folder, const StepFolders& steps, std::optional<int64_t> wanted,
                  TrainingState& state, comm::Group& world, const tensor::MeshCoordinates& coordinates,
                  const ProgressCheck& check, const std::set<std::string>& unused, const Substitutes& substitutes) {
  const std::vector<int64_t>& complete = steps.complete;
  comm::agree(world, at::kCPU, [&] {
    require(!complete.empty(), "checkpoint", "there is no complete checkpoint in ", folder, " to resume from",
            incomplete(steps));
    require(!wanted || std::binary_search(complete.begin(), complete.end(), *wanted), "checkpoint",
            "there is no complete checkpoint of step ", wanted.value_or(0), " in ", folder,
            "; complete steps: ", listed(complete), incomplete(steps));
  });
  Found found;
  std::vector<int64_t> tried = wanted ? std::vector<int64_t>{*wanted} : complete;
  for (; !tried.empty(); tried.pop_back()) {
    found.step = tried.back();
    found.path = step_path(folder, found.step);
    const auto damage = load_unless_damaged(found.path, state, world, coordinates, "", check, unused, substitutes);
    if (!damage) return found;
    found.damaged.push_back(*damage);
  }
  const std::string all = listed(complete);
  const std::string rule =
      wanted ? concat("the checkpoint of step ", *wanted, " cannot be read; complete ones in ", folder, " are: ", all)
             : concat("none of the checkpoints in ", folder, " can be read (", all, ")");
  throw Error("checkpoint", concat(rule, ": ", found.damaged.front().message(),
                                   wanted ? "; name another one, or move this one away" : ""))
      .mark_on_all_ranks();
}

}  // namespace colossal::checkpoint
