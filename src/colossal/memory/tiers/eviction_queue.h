// The tensors of a home that may leave it, in the order in which they do.
//
//   memory::EvictionQueue queue(memory::make_eviction("auto"), timeline);
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

#include "colossal/memory/tiers/eviction.h"
#include "colossal/memory/timeline.h"

namespace colossal::memory {

/// Cost:          the logarithm of the number of tensors in it, and one key, a call; all keys once where the timeline
///                has another revision than when first() was called before: twice in a pass that goes another way than
///                the one before, and never in one that goes the same way.
/// Memory:        32 bytes a number, 64 a tensor in it.
/// Thread safety: none.
class EvictionQueue {
 public:
  /// `timeline` outlives it, and knows tensors by their numbers.
  EvictionQueue(std::unique_ptr<Eviction> eviction, const Timeline& timeline)
      : eviction_(std::move(eviction)), timeline_(timeline) {}

  /// Tensor `number`, which was used at the time `used` last, may leave: from now on, or still. To be called behind
  /// every use of it. Numbers are small: there is a place for each up to the largest.
  void put(size_t number, uint64_t used);
  /// It may not, or not any more.
  void remove(size_t number);
  /// Returns the tensor that leaves first; none if no tensor may leave.
  std::optional<size_t> first();

 private:
  struct Place {
    bool is_taken = false;
    uint64_t used = 0;
    Eviction::Key key{};
  };
  void insert(size_t number);

  std::unique_ptr<Eviction> eviction_;
  const Timeline& timeline_;
  uint64_t revision_ = 0;  // of the timeline, of which keys are, or some of an earlier one
  std::vector<Place> places_;
  std::set<std::pair<Eviction::Key, size_t>> order_;
};

}  // namespace colossal::memory
