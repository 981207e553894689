#include "colossal/schedule/v_shape.h"

#include "colossal/base/error.h"
#include "colossal/schedule/list_scheduler.h"

namespace colossal::schedule {
namespace {

std::string fault(const Options& options) {
  return options.chunks == 2 ? "" : concat(options.name, " has 2 chunks a rank: got ", options.chunks, "; leave chunks out");
}

Placement place(const Options& options) { return Placement::zigzag(options.stages, 2); }

Lists plan(const Options& options, const Placement& placement, double limit) {
  if (options.memory_limit > 0) limit = options.memory_limit;
  return list_schedule(placement, options.micro_batches, options.costs, {.limit = limit});
}

Lists v_order(const Options& options, const Placement& placement) { return plan(options, placement, options.stages); }
Lists half_order(const Options& options, const Placement& placement) { return plan(options, placement, (options.stages + 2) / 2); }
Lists min_order(const Options& options, const Placement& placement) { return plan(options, placement, (options.stages + 4) / 3); }

}  // namespace

Family zero_bubble_v() { return {"zero-bubble-v", "no idle time at equal costs, memory of 1f1b, chunks in a V", 2, true, fault, place, v_order}; }
Family v_half() { return {"v-half", "chunks in a V, half the memory of 1f1b", 2, true, fault, place, half_order}; }
Family v_min() { return {"v-min", "chunks in a V, a third of the memory of 1f1b", 2, true, fault, place, min_order}; }

}  // namespace colossal::schedule
