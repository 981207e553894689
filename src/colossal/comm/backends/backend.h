// The addition of every transport to Group: a function that ends the group from outside.
#pragma once
#include <chrono>
#include <string>

#include "colossal/comm/group.h"

namespace colossal::comm {

/// A time limit for libraries that require one. It exceeds every wait that the watchdog allows and every time for
/// which ranks are busy. (In milliseconds it fits the int that poll() takes.)
inline constexpr std::chrono::milliseconds kBackendTimeout = std::chrono::hours(24 * 14);

class Backend : public Group {
 public:
  /// Ends the group on this rank, and on its peers if the transport can reach them. Calls that wait, and all later
  /// calls, throw Error("comm", reason), or the reason of an earlier abort. Thread safe; never throws.
  virtual void abort(const std::string& reason) noexcept = 0;
};

}  // namespace colossal::comm
