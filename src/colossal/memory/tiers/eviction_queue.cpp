#include "colossal/memory/tiers/eviction_queue.h"

namespace colossal::memory {

void EvictionQueue::put(size_t number, uint64_t used) {
  if (places_.size() <= number) places_.resize(number + 1);
  remove(number);
  places_[number].is_taken = true;
  places_[number].used = used;
  insert(number);
}

void EvictionQueue::remove(size_t number) {
  if (number >= places_.size() || !places_[number].is_taken) return;
  order_.erase({places_[number].key, number});
  places_[number].is_taken = false;
}

std::optional<size_t> EvictionQueue::first() {
  if (revision_ != timeline_.revision()) {
    revision_ = timeline_.revision();
    order_.clear();
    for (size_t number = 0; number < places_.size(); ++number)
      if (places_[number].is_taken) insert(number);
  }
  if (order_.empty()) return {};
  return order_.rbegin()->second;
}

void EvictionQueue::insert(size_t number) {
  Place& place = places_[number];
  place.key = policy_->key({number, timeline_.next_use(number), place.used});
  order_.emplace(place.key, number);
}

}  // namespace colossal::memory
