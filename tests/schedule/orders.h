// Short texts for schedules in these tests.
#pragma once
#include <string>

#include "colossal/schedule/make.h"

namespace colossal::schedule {

/// Returns the compute steps of one rank: "F0 F1 B0 B1", with chunk letters if there are several chunks.
inline std::string order_of(const Schedule& schedule, int rank) {
  std::string out;
  for (const PipelineOp& step : schedule.ranks[rank]) {
    if (is_compute(step.action)) out += (out.empty() ? "" : " ") + to_string(step, schedule.placement.chunks());
  }
  return out;
}

inline Schedule make(const std::string& name, int stages, int micro_batches, const Costs& costs = {}, int chunks = 0) {
  return make_schedule(
      {.name = name, .stages = stages, .micro_batches = micro_batches, .chunks = chunks, .costs = costs});
}

}  // namespace colossal::schedule
