// When a connection must do something although nothing arrives, and the answer to a request that is late.
#pragma once
#include <algorithm>
#include <chrono>

#include "colossal/base/error.h"
#include "colossal/http/error_answer.h"
#include "colossal/http/limits.h"

namespace colossal::http {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

inline Clock::duration seconds_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// The phases of a connection.
enum class Phase {
  kIdle,    ///< no byte of a request has arrived
  kHeader,  ///< a part of the headers has arrived
  kBody,    ///< the headers have arrived
  kAnswer,  ///< the request, or its refusal, is being answered
  kLinger   ///< the last answer was sent; input is read and dropped, until the client has read the answer
};

/// Measures how long a connection has been in its phase, and how long its client has read nothing.
class PhaseClock {
 public:
  PhaseClock(const ServerLimits& limits, double silence) : limits_(limits), silence_(silence) {}

  void enter(Phase phase) {
    phase_ = phase;
    since_ = progress_ = Clock::now();
  }
  Phase phase() const { return phase_; }
  /// A client has read enough of its answer (ServerLimits::unread_timeout), or bytes are written from now on.
  void progress() { progress_ = Clock::now(); }

  /// Returns when the phase has taken too long, or when a stream has been silent for too long. `is_reading`: a read is
  /// pending, which will report that the client has left. Otherwise the caller has to look every second.
  Time deadline(bool is_reading, bool is_writing, bool is_stream) const {
    constexpr double kLookSeconds = 1, kLingerSeconds = 2;
    Time at = Time::max();
    switch (phase_) {
      case Phase::kIdle:
        at = since_ + seconds_of(limits_.idle_timeout);
        break;
      case Phase::kHeader:
        at = since_ + seconds_of(limits_.header_timeout);
        break;
      case Phase::kBody:
        at = since_ + seconds_of(limits_.body_timeout);
        break;
      case Phase::kLinger:
        at = since_ + seconds_of(kLingerSeconds);
        break;
      case Phase::kAnswer:
        if (is_writing)
          at = progress_ + seconds_of(limits_.unread_timeout);
        else if (is_stream)
          at = progress_ + seconds_of(silence_);
    }
    return is_reading ? at : std::min(at, Clock::now() + seconds_of(kLookSeconds));
  }
  /// Returns the answer to a request whose headers or body are late. `waits_for_memory`: the body waits for others.
  ErrorAnswer late_answer(bool waits_for_memory) const {
    if (phase_ == Phase::kHeader)
      return {.status = 408, .message = concat("the headers must arrive within ", limits_.header_timeout, " s")};
    if (waits_for_memory)
      return {.status = 503, .message = "the bodies of other requests fill the memory for them: try again later"};
    return {.status = 408, .message = concat("the body must arrive within ", limits_.body_timeout, " s")};
  }

 private:
  const ServerLimits& limits_;
  const double silence_;
  Phase phase_ = Phase::kIdle;
  Time since_ = Clock::now(), progress_ = since_;
};

}  // namespace colossal::http
