#include "colossal/memory/placement.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::memory {
namespace {

constexpr size_t kFar = std::numeric_limits<size_t>::max();

/// Returns the sort key of `chunk`: the chunk with the greatest key is released first.
std::pair<size_t, size_t> eviction_key(const Situation& now, size_t chunk, EvictionOrder order) {
  const size_t unused = now.timeline.since(chunk).value_or(kFar);
  if (order == EvictionOrder::UsedLast) return {now.timeline.until(chunk).value_or(kFar), unused};
  const auto place = std::find(now.gathered.begin(), now.gathered.end(), chunk) - now.gathered.begin();
  if (order == EvictionOrder::LastComer) return {place, 0};
  return {unused, kFar - place};
}

}  // namespace

EvictionOrder eviction_order_of(const std::string& placement) {
  require(placement == "auto" || placement == "lru" || placement == "static", "memory",
          "placement must be one of auto, lru, static: got ", placement);
  return placement == "auto"  ? EvictionOrder::UsedLast
         : placement == "lru" ? EvictionOrder::LongestUsed
                              : EvictionOrder::LastComer;
}

std::vector<size_t> chunks_to_release(const Situation& now, std::vector<size_t> candidates, int64_t excess,
                                      EvictionOrder order) {
  std::vector<size_t> gone;
  while (excess > 0 && !candidates.empty()) {
    const auto first = std::max_element(candidates.begin(), candidates.end(), [&](size_t a, size_t b) {
      return eviction_key(now, a, order) < eviction_key(now, b, order);
    });
    excess -= now.bytes[*first];
    gone.push_back(*first);
    candidates.erase(first);
  }
  return gone;
}

ChunkMoves GatherNext::before_use(const Situation& now) {
  ChunkMoves moves;
  const auto next = now.timeline.next(), other = next ? next : now.timeline.previous();
  for (const size_t chunk : now.gathered)
    if (chunk != now.timeline.current() && chunk != other) moves.release.push_back(chunk);
  if (next) moves.gather.push_back(*next);
  return moves;
}

ChunkMoves GatherWithin::before_use(const Situation& now) {
  ChunkMoves moves;
  const auto current = now.timeline.current(), next = now.timeline.next();
  if (next) moves.gather.push_back(*next);
  int64_t bytes = now.bytes[*current] + (next ? now.bytes[*next] : 0);
  std::vector<size_t> others;
  for (const size_t chunk : now.gathered) {
    if (chunk == current || chunk == next) continue;
    others.push_back(chunk);
    bytes += now.bytes[chunk];
  }
  moves.release = chunks_to_release(now, std::move(others), bytes - budget_, EvictionOrder::UsedLast);
  return moves;
}

}  // namespace colossal::memory
