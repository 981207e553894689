#include "colossal/memory/placement.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace colossal::memory {
namespace {

/// Greater: needed later, as far as that is known, else used longer ago.
std::pair<size_t, size_t> distance(const Timeline& timeline, size_t chunk) {
  constexpr size_t kFar = std::numeric_limits<size_t>::max();
  return {timeline.until(chunk).value_or(kFar), timeline.since(chunk).value_or(kFar)};
}

}  // namespace

Plan GatherNext::before_use(const Situation& now) {
  Plan plan;
  const auto next = now.timeline.next(), other = next ? next : now.timeline.previous();
  for (const size_t chunk : now.gathered)
    if (chunk != now.timeline.current() && chunk != other) plan.release.push_back(chunk);
  if (next) plan.gather.push_back(*next);
  return plan;
}

Plan GatherWithin::before_use(const Situation& now) {
  Plan plan;
  const auto current = now.timeline.current(), next = now.timeline.next();
  if (next) plan.gather.push_back(*next);
  int64_t bytes = now.bytes[*current] + (next ? now.bytes[*next] : 0);
  std::vector<size_t> others;
  for (const size_t chunk : now.gathered) {
    if (chunk == current || chunk == next) continue;
    others.push_back(chunk);
    bytes += now.bytes[chunk];
  }
  while (bytes > budget_ && !others.empty()) {
    const auto last = std::max_element(others.begin(), others.end(), [&](size_t a, size_t b) {
      return distance(now.timeline, a) < distance(now.timeline, b);
    });
    bytes -= now.bytes[*last];
    plan.release.push_back(*last);
    others.erase(last);
  }
  return plan;
}

}  // namespace colossal::memory
