// Time that only moves forward.
#pragma once
#include <chrono>

namespace colossal {

/// Returns the seconds of the steady clock since an arbitrary moment.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// A timer that measures from its construction or the last restart().
class Stopwatch {
 public:
  double seconds() const { return steady_seconds() - started_; }
  /// Returns the seconds so far and restarts the timer.
  double restart() {
    const double now = steady_seconds(), elapsed = now - started_;
    started_ = now;
    return elapsed;
  }

 private:
  double started_ = steady_seconds();
};

}  // namespace colossal
