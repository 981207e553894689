// Chooses items from a sequence so that a share of the bytes is taken, spread evenly.
//
//   memory::EvenShare stays(budget, all);
//   for (const int64_t bytes : sizes) (stays.takes(bytes) ? here : there).push_back(bytes);
#pragma once
#include <cstdint>

namespace colossal::memory {

/// Takes an item if the bytes taken so far are at most their share of the bytes seen so far. The item must also fit
/// into what is left of the total share. The first item is therefore taken if it fits. Both the items that are taken
/// and the others are spread evenly over the sequence.
class EvenShare {
 public:
  /// `share`: bytes to take of the `all` bytes that the sequence has; nothing is taken if it is not positive.
  EvenShare(int64_t share, int64_t all) : share_(share), all_(all) {}

  /// Returns whether the next item, of `bytes`, is taken. The sum of the taken bytes never exceeds the share.
  bool takes(int64_t bytes) {
    const bool is_behind = static_cast<double>(taken_) * static_cast<double>(all_) <=
                           static_cast<double>(seen_) * static_cast<double>(share_);
    seen_ += bytes;
    if (!is_behind || taken_ + bytes > share_) return false;
    taken_ += bytes;
    return true;
  }
  int64_t taken() const { return taken_; }

 private:
  int64_t share_, all_, seen_ = 0, taken_ = 0;
};

}  // namespace colossal::memory
