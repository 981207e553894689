// The tensors of an offload store that may be evicted, in the order of their eviction.
//
//   memory::EvictionQueue queue(memory::make_eviction_policy("auto"), timeline);
//   queue.put(number, clock);                        // it may leave; again after each use
//   if (const auto number = queue.first()) leave(*number);
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "colossal/memory/tiers/eviction_policy.h"
#include "colossal/memory/timeline.h"

namespace colossal::memory {

/// Cost:          per call the logarithm of the number of tensors in the queue, and one key. first() computes all keys
///                again if the timeline has another revision than at its last call: twice in a pass that differs from
///                the one before, and never in one that equals it.
/// Memory:        32 bytes per number, and 64 per tensor in the queue.
/// Thread safety: none.
class EvictionQueue {
 public:
  /// `timeline` must outlive the queue and contain tensors by their numbers.
  EvictionQueue(std::unique_ptr<EvictionPolicy> policy, const Timeline& timeline)
      : policy_(std::move(policy)), timeline_(timeline) {}

  /// Inserts or updates tensor `number`, which may be evicted and was last used at the time `used`. Callers call it
  /// after every use of the tensor. Numbers are small: the queue has a place for each number up to the largest.
  void put(size_t number, uint64_t used);
  /// Removes tensor `number`, which may not be evicted; does nothing if it is not in the queue.
  void remove(size_t number);
  /// Returns the tensor to evict first; none if no tensor may be evicted.
  std::optional<size_t> first();

 private:
  struct Place {
    bool is_taken = false;
    uint64_t used = 0;
    EvictionPolicy::Key key{};
  };
  void insert(size_t number);

  std::unique_ptr<EvictionPolicy> policy_;
  const Timeline& timeline_;
  // Revision of the timeline at which the keys were computed; later put() calls may be of newer ones.
  uint64_t revision_ = 0;
  std::vector<Place> places_;
  std::set<std::pair<EvictionPolicy::Key, size_t>> order_;
};

}  // namespace colossal::memory
