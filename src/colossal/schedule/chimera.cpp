#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/schedule/families.h"
#include "colossal/schedule/search.h"

namespace colossal::schedule {
namespace {

std::string chimera_fault(const Options& options) {
  const int p = options.stages, m = options.micro_batches;
  if (p == 1) return "";
  if (p % 2 != 0) return concat("chimera needs an even number of ranks: got ", p, "; nearest ", p - 1, " or ", p + 1);
  if (m % 2 != 0) {
    return concat("chimera needs an even number of micro_batches, half for each direction: got ", m, "; nearest ",
                  m > 1 ? concat(m - 1, " or ") : "", m + 1);
  }
  if (options.memory_limit > 0 && options.memory_limit < 2) {
    return concat("chimera keeps one activation per direction: got memory_limit ", options.memory_limit, "; nearest 2");
  }
  return "";
}

/// A single rank has no opposite direction, so it gets one plain pipe.
Placement chimera_placement(const Options& options) {
  return options.stages == 1 ? Placement::looped(1, 1) : Placement::opposed(options.stages);
}

Lists chimera_order(const Options& options, const Placement& placement) {
  const int p = options.stages;
  const int in_flight =
      options.memory_limit > 0 ? static_cast<int>(options.memory_limit) / placement.pipes() : std::max(1, p / 2);
  Policy policy{.splits_backward = false, .in_flight = std::vector<int>(p, in_flight)};
  Search search(placement, options, 0);
  for (const auto backwards : {Policy::Order::OldestMicroBatch, Policy::Order::DeepestStage}) {
    policy.backwards = backwards;
    search.propose(policy);
  }
  return std::move(search).best();
}

}  // namespace

Family chimera() {
  return {"chimera",
          "two pipelines in opposite directions, each with a copy of the weights",
          2,
          false,
          false,
          chimera_fault,
          chimera_placement,
          chimera_order};
}

}  // namespace colossal::schedule
