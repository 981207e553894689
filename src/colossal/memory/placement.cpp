#include "colossal/memory/placement.h"

namespace colossal::memory {

Plan GatherNext::before_use(const Timeline& timeline, const std::vector<size_t>& gathered) {
  Plan plan;
  const auto next = timeline.next(), other = next ? next : timeline.previous();
  if (releases_)
    for (const size_t chunk : gathered)
      if (chunk != timeline.current() && chunk != other) plan.release.push_back(chunk);
  if (next) plan.gather.push_back(*next);
  return plan;
}

}  // namespace colossal::memory
