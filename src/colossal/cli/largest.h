// The search of `colossal bench memory`.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>

namespace colossal::cli {

/// The largest number that `works`, where each below one that works does, too; 0: not even `first`. Twice as large
/// until one does not, then halfway between, until no step of more than `resolution` of what works is left, or of one.
/// Whoever has no more time or patience throws in `works`.
inline int64_t largest_that_works(int64_t first, double resolution, const std::function<bool(int64_t)>& works) {
  int64_t good = 0, bad = first;
  while (works(bad)) good = bad, bad *= 2;
  if (good == 0) return 0;
  while (bad - good > std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(good) * resolution))) {
    const int64_t middle = good + (bad - good) / 2;
    (works(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace colossal::cli
