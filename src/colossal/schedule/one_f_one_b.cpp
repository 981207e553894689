#include <algorithm>

#include "colossal/schedule/families.h"

namespace colossal::schedule {
namespace {

Placement one_f_one_b_placement(const Options& options) { return Placement::looped(options.stages, 1); }

/// Makes warm-up forwards until the first gradient can return, then pairs, then the remaining backwards.
Lists one_f_one_b_order(const Options& options, const Placement& placement) {
  Lists lists;
  const int m = options.micro_batches;
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    int warm_up = std::min(placement.ranks() - 1 - rank, m);
    if (options.memory_limit > 0) warm_up = std::min(warm_up, static_cast<int>(options.memory_limit) - 1);
    std::vector<PipelineOp> steps;
    for (int i = 0; i < warm_up; ++i) steps.push_back({Action::Forward, i, 0});
    for (int i = 0; i < m; ++i) {
      if (warm_up + i < m) steps.push_back({Action::Forward, warm_up + i, 0});
      steps.push_back({Action::Backward, i, 0});
    }
    lists.push_back(steps);
  }
  return lists;
}

}  // namespace

Family one_f_one_b() {
  return {"1f1b",           "one forward, one backward in turn", 1, false, false, nullptr, one_f_one_b_placement,
          one_f_one_b_order};
}

}  // namespace colossal::schedule
