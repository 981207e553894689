// What could not be read and was passed over, told so that a log stays short.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::data {

/// Counts all; the first 20 have a notice, then every thousandth.
class PassedOver {
 public:
  void add(const std::string& what) {
    if (++count_ <= kNamed || count_ % 1000 == 0)
      notices_.push_back(concat("skipped: ", what, " (", count_, " so far)"));
  }
  /// A line each for people, of what came since the last call.
  std::vector<std::string> take_notices() { return std::exchange(notices_, {}); }
  int64_t count() const { return count_; }
  /// Counts on from there.
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
