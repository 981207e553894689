#include "colossal/schedule/zero_bubble.h"

#include "colossal/schedule/list_scheduler.h"

namespace colossal::schedule {
namespace {

std::string no_fault(const Options&) { return ""; }

Placement place(const Options& options) { return Placement::looped(options.stages, 1); }

Lists plan(const Options& options, const Placement& placement, double limit) {
  if (options.memory_limit > 0) limit = options.memory_limit;
  return list_schedule(placement, options.micro_batches, options.costs, {.limit = limit});
}

Lists h1_order(const Options& options, const Placement& placement) { return plan(options, placement, options.stages); }
Lists h2_order(const Options& options, const Placement& placement) { return plan(options, placement, 2 * options.stages - 1); }

}  // namespace

Family zero_bubble_h1() { return {"zero-bubble-h1", "weight gradients fill idle time, memory of 1f1b", 1, true, no_fault, place, h1_order}; }
Family zero_bubble_h2() { return {"zero-bubble-h2", "no idle time at equal costs, twice the memory of 1f1b", 1, true, no_fault, place, h2_order}; }

}  // namespace colossal::schedule
