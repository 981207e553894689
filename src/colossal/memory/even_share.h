// Which of the things that come one after another are taken, where there is room for a share of their bytes.
//
//   memory::EvenShare stays(budget, all);
//   for (const int64_t bytes : sizes) (stays.takes(bytes) ? here : there).push_back(bytes);
#pragma once
#include <cstdint>

namespace colossal::memory {

/// Takes the first, and then every one by which what was taken falls behind its share: what is taken is spread evenly
/// over all that comes, and what is left comes at an even pace.
class EvenShare {
 public:
  /// `share`: bytes that may be taken of `all` that will come; none are where it is not positive.
  EvenShare(int64_t share, int64_t all) : share_(share), all_(all) {}

  /// Whether what comes now, of `bytes`, is taken. Never more than the share in all.
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
