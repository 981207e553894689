#include "colossal/memory/chunk_plan.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>

namespace colossal::memory {
namespace {

constexpr int64_t kAlignment = 16;  // elements: a cache line of fp32
constexpr size_t kCandidates = 64;
constexpr int64_t kSegmentUnit = 4096;  // elements

ChunkPlan pack(const std::vector<PackItem>& items, int64_t capacity) {
  ChunkPlan plan{.capacity = capacity};
  std::map<int64_t, size_t> open;  // the chunk of each group that is not closed
  for (size_t i = 0; i < items.size(); ++i) {
    const auto found = open.find(items[i].group);
    const bool fits = found != open.end() && plan.chunks[found->second].length + items[i].size <= capacity;
    if (!fits) {
      open[items[i].group] = plan.chunks.size();
      plan.chunks.emplace_back();
    }
    PackedChunk& chunk = plan.chunks[open[items[i].group]];
    chunk.items.push_back(i);
    chunk.offsets.push_back(chunk.length);
    chunk.length += items[i].size;
  }
  for (PackedChunk& chunk : plan.chunks) {
    const int64_t ranks = items[chunk.items[0]].ranks, unit = ranks == 1 ? 1 : kAlignment * ranks;
    const int64_t padded = (chunk.length + unit - 1) / unit * unit;
    plan.padding += padded - chunk.length;
    chunk.length = padded;
  }
  return plan;
}

int64_t filled(const PackedChunk& chunk, const std::vector<PackItem>& items) {
  return chunk.offsets.back() + items[chunk.items.back()].size;
}

/// Returns the ratio of the largest chunk to the mean, over chunks of `capacity` elements or less.
double imbalance(const ChunkPlan& plan) {
  int64_t largest = 0, sum = 0, count = 0;
  for (const PackedChunk& chunk : plan.chunks) {
    if (chunk.items.size() == 1 && chunk.length > plan.capacity) continue;
    largest = std::max(largest, chunk.length);
    sum += chunk.length;
    ++count;
  }
  return sum == 0 ? 0 : static_cast<double>(largest * count) / static_cast<double>(sum);
}

/// Returns sizes that chunks may have, sums of consecutive items, in [target / 2, target]; the largest first.
std::vector<int64_t> candidates(const std::vector<PackItem>& items, int64_t target) {
  std::set<int64_t, std::greater<>> sizes{target};
  for (size_t begin = 0; begin < items.size() && sizes.size() < kCandidates; ++begin) {
    int64_t sum = 0;
    for (size_t i = begin; i < items.size() && sum + items[i].size <= target; ++i)
      if ((sum += items[i].size) >= target / 2) sizes.insert(sum);
  }
  return {sizes.begin(), sizes.end()};
}

}  // namespace

ChunkPlan plan_chunks(const std::vector<PackItem>& items, int64_t target) {
  ChunkPlan best;
  double least = 0;
  for (const int64_t capacity : candidates(items, target)) {
    ChunkPlan plan = pack(items, capacity);
    const double found = imbalance(plan);
    if (!best.chunks.empty() && found >= least) continue;
    least = found;
    best = std::move(plan);
  }
  best.capacity = 0;
  for (const PackedChunk& chunk : best.chunks)
    if (chunk.items.size() > 1 || items[chunk.items[0]].size <= target)
      best.capacity = std::max(best.capacity, filled(chunk, items));
  return best;
}

int64_t segment_length(int64_t length, int64_t capacity) {
  if (length <= capacity) return length;
  const auto unit = std::min(kSegmentUnit, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(capacity))));
  const int64_t units = (length + unit - 1) / unit, most = capacity / unit, count = (units + most - 1) / most;
  return (units + count - 1) / count * unit;
}

}  // namespace colossal::memory
