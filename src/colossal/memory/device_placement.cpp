#include "colossal/memory/device_placement.h"

#include <algorithm>
#include <numeric>

namespace colossal::memory {
namespace {

bool is_in(const std::vector<size_t>& chunks, size_t chunk) {
  return std::find(chunks.begin(), chunks.end(), chunk) != chunks.end();
}

int64_t bytes_of(const std::vector<size_t>& chunks, const Situation& now) {
  return std::accumulate(chunks.begin(), chunks.end(), int64_t{0},
                         [&](int64_t sum, size_t chunk) { return sum + now.bytes[chunk]; });
}

}  // namespace

int64_t GatherWithinDevice::room_beside(std::optional<int64_t> others) const {
  if (!others) return 0;
  return static_cast<int64_t>(kSteadyShare * static_cast<double>(capacity_)) - *others - trace_->reserved();
}

Plan GatherWithinDevice::before_use(const Situation& now) {
  trace_->end_moment();
  const int64_t room = room_beside(trace_->others(now.timeline)),
                room_ahead = room_beside(trace_->next_change(now.timeline));
  std::vector<size_t> whole = now.in_use;  // chunks that must be gathered
  if (!is_in(whole, *now.timeline.current())) whole.push_back(*now.timeline.current());
  Plan plan;
  const auto next = now.timeline.next();
  if (next && !is_in(whole, *next) && bytes_of(whole, now) + now.bytes[*next] <= std::min(room, room_ahead)) {
    whole.push_back(*next);
    plan.gather.push_back(*next);
  }
  std::vector<size_t> candidates;
  for (const size_t chunk : now.gathered)
    if (!is_in(whole, chunk)) candidates.push_back(chunk);
  const int64_t excess = bytes_of(whole, now) + bytes_of(candidates, now) - room;
  plan.release = chunks_to_release(now, std::move(candidates), excess, order_);
  return plan;
}

std::vector<size_t> GatherWithinDevice::after_pass(const Situation& now) {
  trace_->end_pass(now.timeline);
  if (!trace_->is_in_passes()) return now.gathered;
  return chunks_to_release(now, now.gathered, bytes_of(now.gathered, now) - room_beside(trace_->others(now.timeline)),
                           order_);
}

void GatherWithinDevice::settled(const Situation& now) {
  trace_->begin_moment(now.timeline, bytes_of(now.gathered, now), bytes_of(now.in_use, now));
}

}  // namespace colossal::memory
