// Few rows of many axes: a covering array of pairs.
//
//   // 9 rows, not 27: each value of an axis meets each value of each other axis.
//   for (const test::ArrayRow& row : test::covering_array({3, 3, 3}, [](const test::ArrayRow&) { return true; }))
//     run(data[row[0]], tensor[row[1]], pipeline[row[2]]);
#pragma once
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace colossal::test {

/// A value, counted from 0, of each axis.
using ArrayRow = std::vector<int>;

/// The pairs of values of two axes.
class ArrayPairs {
 public:
  explicit ArrayPairs(const std::vector<int>& sizes) {
    for (const int size : sizes) {
      starts_.push_back(values_);
      values_ += static_cast<size_t>(size);
    }
    has_.resize(values_ * values_);
  }
  /// Sets whether the pairs of a row are among these, and returns how many of them were not so before.
  int set(const ArrayRow& row, bool value) {
    int changed = 0;
    each(row, [&](size_t pair) {
      changed += has_[pair] != value ? 1 : 0;
      has_[pair] = value;
    });
    return changed;
  }
  /// Returns how many pairs of a row are among these.
  int count(const ArrayRow& row) const {
    int found = 0;
    each(row, [&](size_t pair) { found += has_[pair]; });
    return found;
  }

 private:
  template <class Work>
  void each(const ArrayRow& row, const Work& work) const {
    for (size_t i = 0; i < row.size(); ++i)
      for (size_t j = i + 1; j < row.size(); ++j)
        work((starts_[i] + static_cast<size_t>(row[i])) * values_ + starts_[j] + static_cast<size_t>(row[j]));
  }
  std::vector<size_t> starts_;
  size_t values_ = 0;
  std::vector<char> has_;
};

/// Returns rows that `is_allowed` allows, so that each pair of values of two axes that any allowed row has occurs in
/// one of them. `sizes`: the number of values of each axis. Cost: a call of `is_allowed` for each row of the product.
inline std::vector<ArrayRow> covering_array(const std::vector<int>& sizes,
                                            const std::function<bool(const ArrayRow&)>& is_allowed) {
  std::vector<std::pair<int, ArrayRow>> rows;  // with the number of their pairs that may be missing, or more
  ArrayPairs missing(sizes);
  int pairs = 0;
  ArrayRow row(sizes.size());
  for (size_t axis = 0; axis < sizes.size();) {
    if (is_allowed(row)) {
      pairs += missing.set(row, true);
      rows.emplace_back(static_cast<int>(sizes.size() * sizes.size()), row);
    }
    for (axis = 0; axis < sizes.size() && ++row[axis] == sizes[axis]; ++axis) row[axis] = 0;
  }
  std::vector<ArrayRow> chosen;
  while (pairs > 0) {
    std::pair<int, ArrayRow> best{0, {}};
    for (auto& [most, candidate] : rows) {
      if (most <= best.first) continue;
      most = missing.count(candidate);
      if (most > best.first) best = {most, candidate};
    }
    pairs -= missing.set(best.second, false);
    chosen.push_back(best.second);
  }
  return chosen;
}

}  // namespace colossal::test
