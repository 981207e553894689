// The search algorithm of `colossal bench memory`.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>

namespace colossal::cli {

/// Returns the largest number for which `works` returns true; 0 = not even `first` works. If a number works, all
/// smaller ones must work too. Doubles the number until it does not work, then bisects. Stops when the interval is at
/// most 1, or at most `resolution` times the largest number that works. `works` may throw to end the search.
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
