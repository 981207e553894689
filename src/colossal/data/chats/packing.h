// Samples of different lengths as rows of one length.
//
//   data::best_fit({9, 3, 7, 2, 5, 6, 12}, 12);          // {{6}, {0, 1}, {2, 4}, {5, 3}}: 12, 9 + 3, 7 + 5, 6 + 2
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace colossal::data {

/// Returns rows of at most `capacity` tokens: for each row the indices of its samples, of which `sizes` are the tokens.
/// Samples are placed whole, the longest first, and the first of equal ones first. A sample goes into the row that it
/// fills best, of several such rows into the first; if it fits none, it begins a row (best-fit decreasing).
/// Cost: O(n log n). Errors ("data"): a size that is not in [1, capacity].
std::vector<std::vector<size_t>> best_fit(const std::vector<int64_t>& sizes, int64_t capacity);

}  // namespace colossal::data
