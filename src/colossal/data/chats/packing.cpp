#include "colossal/data/chats/packing.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::data {

std::vector<std::vector<size_t>> best_fit(const std::vector<int64_t>& sizes, int64_t capacity) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  std::vector<std::vector<size_t>> rows;
  std::set<std::pair<int64_t, size_t>> open;  // free tokens and index of each row that is not full
  for (const size_t sample : order) {
    const int64_t size = sizes[sample];
    require(size >= 1 && size <= capacity, "data", "a sample of a row must have 1 to ", capacity, " tokens: got ",
            size);
    const auto fitting = open.lower_bound({size, 0});
    std::pair<int64_t, size_t> row = {capacity, rows.size()};
    if (fitting == open.end()) {
      rows.emplace_back();
    } else {
      row = *fitting;
      open.erase(fitting);
    }
    rows[row.second].push_back(sample);
    if (row.first > size) open.insert({row.first - size, row.second});
  }
  return rows;
}

}  // namespace colossal::data
