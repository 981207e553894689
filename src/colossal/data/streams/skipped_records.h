// Notices about records that could not be read and were skipped, limited so that a log stays short.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::data {

/// A counter of skipped records. The first 20 give a notice each, and after them every thousandth.
class SkippedRecords {
 public:
  void add(const std::string& what) {
    if (++count_ <= kNamed || count_ % 1000 == 0)
      notices_.push_back(concat("skipped: ", what, " (", count_, " so far)"));
  }
  /// Returns the notices since the last call, one line each.
  std::vector<std::string> take_notices() { return std::exchange(notices_, {}); }
  int64_t count() const { return count_; }
  /// Sets the count to `count`, as after a resume, and drops the notices.
  void begin_at(int64_t count) {
    count_ = count;
    notices_.clear();
  }

 private:
  static constexpr int64_t kNamed = 20;
  int64_t count_ = 0;
  std::vector<std::string> notices_;
};

}  // namespace colossal::data
